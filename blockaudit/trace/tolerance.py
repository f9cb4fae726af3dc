"""Whether an error is one that a correct implementation may have.

The default policy measures: the noise floor of a site is the error of the reference run in the release dtype, held
against the reference in float32 (float32's own against float64), on the same inputs. Its factors are set by simulation
(tests/trace/test_tolerance.py). Over adds, scaled adds, norms, projections, gated MLPs and attention in three dtypes,
written in every way that rounds differently, partial sums in the dtype and one-pass variances among them, the RMS error
was at most 2.1 x the floor, that of one token 2.4 x, the largest element 3.7 x. One correct rounding has an RMS of 0.17
to 0.32 eps, which is why no floor is below a quarter of eps: a copy and an exact sum have a floor of zero.

Of a norm's bits, float32 moments taken in another order change fewer than 4 x eps(float32) / eps(dtype), bfloat16
moments 20 to 40 %, an epsilon of 1e-5 for 1e-6 at unit scale 36 x eps(float32) / eps(dtype) or more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from msgspec.structs import replace

from blockaudit.checkpoint.files import read_capped, reason
from blockaudit.errors import RequestError
from blockaudit.records.conformance import Difference, Mode
from blockaudit.records.tolerance import (
    EPS,
    BitTolerance,
    Closeness,
    Judgement,
    ModeTolerance,
    SiteTolerance,
    TolerancePolicy,
)

_MAX_BYTES = 1 << 20
_TORCH = "torch.testing.assert_close, default of this dtype"
DEFAULT = TolerancePolicy(
    schema="blockaudit/tolerance-policy/1",
    name="default",
    dtypes={
        "float64": Closeness(rtol=1e-7, atol=1e-7, source=_TORCH),
        "float32": Closeness(rtol=1.3e-6, atol=1e-5, source=_TORCH),
        "float16": Closeness(rtol=1e-3, atol=1e-5, source=_TORCH),
        "bfloat16": Closeness(rtol=1.6e-2, atol=1e-5, source=_TORCH),
    },
    modes={
        "local": ModeTolerance(
            factor=4, max_factor=8, reason="twice the worst of the correct implementations that were simulated"
        ),
        "layer": ModeTolerance(
            factor=6,
            max_factor=12,
            loosen=4,
            reason="the roundings of one layer add up, in another order than its floor's",
        ),
        "end-to-end": ModeTolerance(
            factor=8,
            loosen=16,
            reason="errors grow with depth; a router that falls the other way changes one token altogether, and single "
            "tokens are judged by the other modes",
        ),
    },
    bits=BitTolerance(
        factor=3, units=8, elements=4, reason="twice the worst of the correct norms that were simulated, and chance"
    ),
)


def load(path: str | None) -> TolerancePolicy:
    """The policy in a `.json` or `.yaml` file, completed from the default, which None is. Raises RequestError."""
    if path is None:
        return DEFAULT
    from blockaudit.manifest.validate import document_of

    try:
        data = read_capped(path, _MAX_BYTES)
    except OSError as error:
        raise RequestError(f"--tolerance {path}: cannot be read: {reason(error)}") from error
    except ValueError as error:
        raise RequestError(f"--tolerance {path}: {error}") from error
    return completed(document_of("tolerance_policy", TolerancePolicy, data, path))


def completed(policy: TolerancePolicy) -> TolerancePolicy:
    """A policy with the default's word on whatever it does not name."""
    return replace(
        policy,
        dtypes=DEFAULT.dtypes | policy.dtypes,
        modes=DEFAULT.modes | policy.modes,
        bits=policy.bits or DEFAULT.bits,
    )


def described(policy: TolerancePolicy) -> dict[str, Any]:
    """What a report says of its policy: name, kind and the hash of the whole of it."""
    whole = msgspec.json.encode(policy, order="deterministic")
    return {"name": policy.name, "kind": policy.kind, "sha256": hashlib.sha256(whole).hexdigest()}


def judge(
    site: str,
    mode: Mode,
    dtype: str,
    difference: Difference,
    floor: Difference | None,
    policy: TolerancePolicy,
    is_norm: bool,
) -> Judgement:
    """Hold one site's error to the policy, by the metric that is worst for it.

    dtype: the one judged (`bfloat16`). floor: the noise of this site, the reference in `dtype` against the reference
    in the wider one; its `bits` is the spread of the correct ways to compute a norm. Without a floor (two recorded
    traces) a measuring policy falls back on its declared bounds. What is finite on one side alone always fails.
    """
    if difference.non_finite:
        return Judgement("non_finite", float(difference.non_finite), 0.0, False)
    held = list(_limits(site, mode, dtype, difference, floor, policy))
    if is_norm and mode == "local" and policy.bits is not None and difference.bits is not None:
        held.append(("bits", difference.bits, _bits(policy.bits, dtype, difference, floor)))
    metric, observed, tolerance = max(held, key=_strain)
    return Judgement(metric, observed, tolerance, observed <= tolerance)


def widest(floor: Difference, spread: Sequence[Difference]) -> Difference:
    """The noise of a norm: of one correct way to compute it, or between the correct ways, whichever is more.

    On rows whose mean is far above their deviation one way alone may be right by luck. `bits` are the spread's.
    """
    most = {name: max(getattr(d, name) for d in (floor, *spread)) for name in ("rms_rel", "row_rel", "max_abs")}
    return replace(floor, **most, bits=max((d.bits or 0.0 for d in spread), default=None))


Limit = tuple[str, float, float]  # metric, observed, tolerance


def _strain(limit: Limit) -> float:
    _, observed, tolerance = limit
    if tolerance > 0:
        return observed / tolerance
    return float("inf") if observed > 0 else 0.0


def _limits(
    site: str, mode: Mode, dtype: str, difference: Difference, floor: Difference | None, policy: TolerancePolicy
) -> Iterator[Limit]:
    given = _exception(policy, site, mode, dtype)
    allowed = policy.modes[mode]
    declares = given is not None and (given.rtol is not None or given.atol is not None)
    if floor is None or declares or policy.kind == "declared":
        yield from _declared(difference, _closeness(policy, dtype, given, allowed))
        return
    factor = allowed.factor if given is None or given.factor is None else given.factor
    max_factor = allowed.max_factor if given is None or given.max_factor is None else given.max_factor
    least = policy.floor_units * EPS[dtype]
    yield "rms_rel", difference.rms_rel, factor * max(floor.rms_rel, least)
    if max_factor is not None:
        yield "row_rel", difference.row_rel, max_factor * max(floor.row_rel, least)
        yield "max_abs", difference.max_abs, max_factor * max(floor.max_abs, least * difference.scale)


def _declared(difference: Difference, held: Closeness) -> Iterator[Limit]:
    """`atol` + `rtol` x reference, for the RMS over all and for the largest error in the worst token's own scale.

    Not element by element: next to a large element the error of a small one is the large one's.
    """
    if difference.rms > 0:
        yield "rms_rel", difference.rms_rel, held.rtol + held.atol / difference.rms
    yield "max_abs", difference.max_abs, held.atol + held.rtol * difference.scale


def _closeness(policy: TolerancePolicy, dtype: str, given: SiteTolerance | None, mode: ModeTolerance) -> Closeness:
    """The declared bound of a site: an exception is taken as it is, the dtype's own loosened by the mode."""
    if given is not None and (given.rtol is not None or given.atol is not None):
        return Closeness(rtol=given.rtol or 0.0, atol=given.atol or 0.0, source=given.reason)
    own = policy.dtypes[dtype]  # pyright: ignore[reportArgumentType]
    return replace(own, rtol=own.rtol * mode.loosen, atol=own.atol * mode.loosen)


def _exception(policy: TolerancePolicy, site: str, mode: Mode, dtype: str) -> SiteTolerance | None:
    def speaks(given: SiteTolerance) -> bool:
        return (
            fnmatchcase(site, given.site)
            and (not given.modes or mode in given.modes)
            and (not given.dtypes or dtype in given.dtypes)
        )

    return next((given for given in reversed(policy.sites) if speaks(given)), None)


def _bits(held: BitTolerance, dtype: str, difference: Difference, floor: Difference | None) -> float:
    spread = 0.0 if floor is None or floor.bits is None else floor.bits
    least = held.units * EPS["float32"] / EPS[dtype]
    return max(held.factor * spread, least) + held.elements / max(difference.elements, 1)
