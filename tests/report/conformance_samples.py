"""Conformance runs made by hand: a clean one, and one with a wrong epsilon in layer 1 of three."""

from __future__ import annotations

from typing import Any

from blockaudit.records.conformance import (
    MODES,
    Blind,
    Conformance,
    Diagnosis,
    Difference,
    Identified,
    Law,
    Mode,
    Quantiles,
    SiteResult,
    Telemetry,
)
from blockaudit.records.report import Finding
from tests.report import samples

BRANCHES = ("self_attention", "mlp")
STEPS = ("residual", "norm_in", "branch", "update", "sum", "state")
EPSILON = "decoder.self_attention.norm_in.epsilon"
FAULT = "layers.1.self_attention.norm_in"


def names(layers: int = 3) -> list[str]:
    """The sites of a Pre-LN decoder in the order in which they are executed."""
    found = ["embed"]
    for n in range(layers):
        found += [f"layers.{n}.{branch}.{step}" for branch in BRANCHES for step in STEPS] + [f"layers.{n}.state"]
    return [*found, "final_norm", "logits"]


def site(
    name: str, mode: Mode = "local", rms: float = 1.25e-7, passed: bool | None = True, **changed: Any
) -> SiteResult:
    """A site judged by its relative RMS."""
    seen = Difference(max_abs=4 * rms, rms_rel=rms, cosine=1 - rms, ulp=rms / 6e-8, token=17, channel=3)
    told: dict[str, Any] = {
        "dtype": "float32", "difference": seen, "metric": "rms_rel", "observed": rms, "tolerance": 2.5e-6,
        "floor": 3.1e-7, "passed": passed,
    }  # fmt: skip
    return SiteResult(site=name, mode=mode, **{**told, **changed})


def quantiles(middle: float, spread: float = 0.5) -> Quantiles:
    return Quantiles(middle * (1 - spread), middle, middle * (1 + spread), middle * (1 + 2 * spread))


def update(name: str, middle: float) -> Telemetry:
    return Telemetry(name, quantiles(middle), Quantiles(-0.11, 0.021, 0.13, 0.3), quantiles(1 + middle / 2, 0.1))


def telemetry(layers: int) -> tuple[Telemetry, ...]:
    return tuple(update(f"layers.{n}.{branch}.update", 0.8 / (n + 1)) for n in range(layers) for branch in BRANCHES)


def identified(layers: str, value: float | None, low: float, high: float, field: str = EPSILON) -> Identified:
    return Identified(field, layers, value, (low, high), 1e-6, "probe rows of tiny variance")


def run(**changed: Any) -> Conformance:
    """A clean run of a three-layer decoder, with any part of it changed."""
    parts: dict[str, Any] = {
        "device": "cpu",
        "depth": "full",
        "dtype": "float32",
        "mode": "all",
        "batch": 2,
        "seq_len": 64,
        "seed": 0,
        "candidate": "LlamaForCausalLM (hf)",
        "sites": tuple(site(name, mode) for mode in MODES for name in names()),
        "identified": (identified("0-2", 1e-6, 9.9e-7, 1.01e-6),),
        "telemetry": telemetry(3),
        "growth": (("", quantiles(2.4, 0.2)),),
        "policy": {"name": "default", "kind": "measured", "sha256": "0" * 64},
    }
    return Conformance(**{**parts, **changed})


def _faulty(name: str, mode: Mode) -> SiteResult:
    """Wrong at the norm in local mode; in the others from there on, to the end of the layer or of the run."""
    order = names()
    if mode == "local":
        bad = name == FAULT
    else:
        after = order.index(name) >= order.index(FAULT) and not name.endswith(".self_attention.residual")
        bad = after and (mode == "end-to-end" or name.startswith("layers.1."))
    return site(name, mode, 0.0123, False, probe="tiny-variance") if bad else site(name, mode)


CLEAN = run()
SITES = tuple(_faulty(name, mode) for mode in MODES for name in names())
FAULTY = run(
    sites=SITES,
    first=next(s for s in SITES if s.passed is False),
    identified=(
        identified("0, 2", 1e-6, 9.9e-7, 1.01e-6),
        identified("1", 1e-5, 9.97e-6, 1.002e-5),
        identified("", None, 0.0, 3e-5, "decoder.final_norm.epsilon"),
    ),
    diagnosis=(Diagnosis(EPSILON, "1", 1e-6, 1e-5, 0.99984, "epsilon-mismatch"),),
    explained=True,
    missing=tuple(f"layers.{n}.mlp.norm_out" for n in range(3)),
    unexpected=("layers.0.mlp.gate",),
    non_finite=(("layers.2.mlp.branch", 12), ("layers.2.mlp.update", 12)),
    silent=("padding: the candidate takes no attention mask",),
)
WRAPPER = run(
    depth="wrapper",
    depth_reason="the library has no decoder of its own for mamba",
    sites=tuple(
        site(name, mode, 0.0, None if name.endswith(".branch") else True) for mode in MODES for name in names()
    ),
)
# Every field that a run can have, and every number that JSON has no word for.
NAN, INF = float("nan"), float("inf")
EXTREME = run(
    sites=(
        site("embed", observed=NAN, floor=None, difference=Difference(INF, NAN, NAN, INF, NAN, 3, 0, 0), passed=False),
        site("logits", tolerance=INF, floor=NAN),
    ),
    first=site(
        "embed", observed=NAN, floor=None, difference=Difference(INF, NAN, NAN, INF, NAN, 3, 0, 0), passed=False
    ),
    identified=(Identified("logits.softcap", "", {"a": (1.23456789, NAN)}, (-INF, INF), None, ""),),
    diagnosis=(Diagnosis("logits.softcap", "", None, 30.0, NAN, "logit-scale-mismatch", 1),),
    explained=False,
    telemetry=(
        Telemetry("layers.0.mlp.update", Quantiles(NAN, 0.123456789, INF, INF), quantiles(0.1), quantiles(1.0)),
    ),
    blind=(Blind(EPSILON, "0-2", 1e-6, 1e-5, "rms_rel", NAN, 1e-2, "bfloat16"),),
    laws=(
        Law("telescoping sum", 1.2345678e-16, 1e-12, True, "x_L = x_0 + sum of updates"),
        Law("order", NAN, 0.0, False),
    ),
    policy={"name": "mine", "rtol": {"float32": 1.3e-6, "int8": INF}, "probes": ["constant"]},
    growth=(("encoder", Quantiles(NAN, 1.23456789, INF, INF)), ("decoder", quantiles(2.0))),
    layers="0-2",
    failure="the candidate raised ValueError: no",
    recorded=True,
)


def report(conformance: Conformance, **changed: Any) -> Any:
    return samples.report(**{"kind": "conformance", "level": "trace", "conformance": conformance, **changed})


DIVERGENCE = Finding("V101", "trace-divergence", "error", FAULT, "first differs here", expected=2.5e-6, observed=0.0123)
