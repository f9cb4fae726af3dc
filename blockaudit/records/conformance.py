"""Trace conformance: what was compared, where it first differs, what the numbers say, and what explains it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Mode = Literal["local", "layer", "end-to-end"]
MODES: tuple[Mode, ...] = ("local", "layer", "end-to-end")
Depth = Literal["full", "wrapper"]

# Sites of one branch in the order in which they are executed (contract section 5).
BRANCH_SITES = ("residual", "norm_in", "branch", "norm_out", "dropped", "update", "sum", "state")


class Difference(msgspec.Struct, frozen=True):
    """How far a candidate's value is from the reference's, over every token and channel.

    `rms_rel` is RMS(candidate - reference) / RMS(reference); `ulp` the largest distance in units in the last place of
    the dtype judged; `bits` the fraction of elements whose bits differ once both are rounded to that dtype (None where
    it is not asked); `token` and `channel` are where the largest error is (flat token number, channel number).
    `row_rel` is the largest RMS(candidate - reference) / RMS(reference) of one token, which a token of large values
    does not hide; `rms` is RMS(reference), `scale` the largest |reference| of the worst token. `non_finite` counts the
    elements that are finite on one side alone, `elements` all that were compared.
    """

    max_abs: float
    rms_rel: float
    cosine: float
    ulp: float = 0.0
    bits: float | None = None
    non_finite: int = 0
    token: int = 0
    channel: int = 0
    row_rel: float = 0.0
    rms: float = 0.0
    scale: float = 0.0
    elements: int = 0


class SiteResult(msgspec.Struct, frozen=True):
    """One site in one mode. `passed` is None where nothing was compared (a wrapper's own branch).

    `metric` names what is judged, `observed` its value and `tolerance` the bound that it is held to; `floor` is the
    measured noise of this site, where the policy measures. `probe` names the probe rows on which it was worst (None:
    the tokens). `dtype` is the dtype that the candidate ran in.
    """

    site: str
    mode: Mode
    dtype: str
    difference: Difference
    metric: str
    observed: float
    tolerance: float
    floor: float | None
    passed: bool | None
    probe: str | None = None


class Identified(msgspec.Struct, frozen=True):
    """What the numbers themselves say a field is, over a run of layers (`0-31`, `1`, `` for what has no layer).

    `interval` holds the truth as the rows support it; `value` is None where they do not decide (`unknown`).
    """

    field: str
    layers: str
    value: Any
    interval: tuple[float, float] | None = None
    declared: Any = None
    evidence: str = ""

    @property
    def differs(self) -> bool:
        """Whether the numbers contradict what is declared: they decide, and the truth that they allow is elsewhere."""
        if self.value is None or self.declared is None:
            return False
        if self.interval is not None and isinstance(self.declared, int | float):
            low, high = self.interval
            return not low <= self.declared <= high
        return self.value != self.declared


class Diagnosis(msgspec.Struct, frozen=True):
    """One edit of the manifest that brings the candidate back, verified by running the edited reference.

    `explains` is the part of the error, in [0, 1], that the edit removes. Edits that only work together share `group`.
    """

    field: str
    layers: str
    declared: Any
    value: Any
    explains: float
    rule: str = ""
    group: int = 0


class Quantiles(msgspec.Struct, frozen=True):
    """Quantiles over tokens."""

    p05: float
    p50: float
    p95: float
    max: float


class Telemetry(msgspec.Struct, frozen=True):
    """Update geometry at one add (specification 0x0CA): rho = RMS(u) / (RMS(x) + delta), cosine of x and u."""

    site: str
    rho: Quantiles
    cosine: Quantiles
    growth: Quantiles  # RMS(state after) / RMS(state before)


class Blind(msgspec.Struct, frozen=True):
    """A field of which a wrong value would pass.

    With `alternative` for `declared` the reference itself moves by `effect` at these layers (on the rows that were
    run, probe rows among them), which is no more than the `tolerance` that the policy allows there. `asked`: the norm
    was asked on probe rows, and it is the policy that lets them pass.
    """

    field: str
    layers: str
    declared: Any
    alternative: Any
    metric: str
    effect: float
    tolerance: float
    dtype: str = ""
    asked: bool = False


class Law(msgspec.Struct, frozen=True):
    """One law of the residual algebra, checked on the run's own numbers (`--algebra`): its error against its bound."""

    name: str
    error: float
    bound: float
    holds: bool
    says: str = ""


class Conformance(msgspec.Struct, frozen=True):
    """One conformance run. `first` is the first divergence in call order; `silent` why something was not compared."""

    device: str
    depth: Depth
    dtype: str
    mode: str
    batch: int
    seq_len: int
    seed: int
    candidate: str
    sites: tuple[SiteResult, ...]
    first: SiteResult | None = None
    identified: tuple[Identified, ...] = ()
    diagnosis: tuple[Diagnosis, ...] = ()
    explained: bool | None = None  # None: nothing to explain; False: no edit explains the divergence
    telemetry: tuple[Telemetry, ...] = ()
    missing: tuple[str, ...] = ()  # sites that the manifest has and the candidate does not give
    unexpected: tuple[str, ...] = ()
    non_finite: tuple[tuple[str, int], ...] = ()
    silent: tuple[str, ...] = ()
    depth_reason: str = ""  # why the reference is no full one
    policy: dict[str, Any] = {}
    layers: str = ""
    failure: str = ""  # what the candidate did that ended the run before its last layer
    unfinished: str = ""  # why not every layer was compared, where the candidate is not to blame
    recorded: bool = False  # the candidate is a trace file, which cannot be asked new questions
    touched: tuple[str, ...] = ()  # inputs that the candidate wrote into
    blind: tuple[Blind, ...] = ()
    laws: tuple[Law, ...] = ()
    growth: tuple[tuple[str, Quantiles], ...] = ()  # stack: RMS of its last state over that of its first
