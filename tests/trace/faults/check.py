"""One fault run in this process, and what of its report is not as it must be."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from blockaudit.pipeline.conform import conform
from blockaudit.records.conformance import Conformance
from blockaudit.records.layers import numbers
from blockaudit.records.report import Report
from blockaudit.records.sites import parse
from tests.families import models
from tests.trace.faults.table import TABLE, Fault

FILES = ("norms", "wiring", "branches", "ends")
# Larger weights than the classes start with: scores and gates are then no constants.
_WIDE = {"initializer_range": 0.3}
CHANGES: dict[str, dict[str, Any]] = {
    "llama12": {"num_hidden_layers": 12, "rms_norm_eps": 1e-5},
    "gemma2": {**_WIDE, "sliding_window": 4, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gpt2": {**_WIDE, "eos_token_id": 2},
    "granite": {**_WIDE, "attention_multiplier": 0.5},
    "t5": {"initializer_factor": 1.0},
}


def table() -> dict[str, Fault]:
    """Every fault, by name."""
    for name in FILES:
        importlib.import_module(f"tests.trace.faults.{name}")
    return TABLE


def checkpoint(family: str, under: Path) -> Path:
    """A tiny checkpoint of a family, built once."""
    folder = under / family
    if not folder.exists():
        import torch

        changes = CHANGES.get(family, _WIDE)
        model = models.build("llama" if family == "llama12" else family, **changes)
        if family == "llama12":
            model = model.to(torch.bfloat16)
        model.save_pretrained(folder)
    return folder


def run(fault: Fault, under: Path, mode: str = "all") -> Report:
    """One run of a fault's candidate on the CPU."""
    source = checkpoint(fault.family, under)
    return conform(source, candidate=fault.candidate, dtype=fault.dtype, device="cpu", batch=2, seq_len=8, mode=mode)


def clean(family: str, under: Path) -> Report:
    """The class itself: the nearest twin of every fault in its family."""
    return conform(checkpoint(family, under), dtype="float32", device="cpu", batch=2, seq_len=8)


def wrong(fault: Fault, report: Report) -> dict[str, str]:
    """What is not right: by `site`, `rule`, `edit` or `layer`, with what was found. Empty: all is right."""
    found: dict[str, str] = {}
    run = report.conformance
    assert run is not None
    names = {f.name for f in report.findings if f.severity == "error"}
    first = run.first.site if run.first is not None and run.first.mode == "local" else None
    if fault.site and not (first or "").startswith(fault.site):
        found["site"] = str(first)
    extra = names - fault.rules - fault.also - {"trace-divergence", "site-missing", "trace-non-finite"}
    lacking = (fault.rules | ({"trace-divergence"} if fault.site else set())) - names
    if extra or lacking:
        found["rule"] = f"lacks {sorted(lacking)}, has {sorted(extra)} too"
    edit = _edit(fault, run)
    if edit:
        found["edit"] = edit
    blamed = _others(fault, run)
    if blamed:
        found["layer"] = blamed
    if not set(fault.missing) <= set(run.missing):
        found["missing"] = str(run.missing)
    return found


def _edit(fault: Fault, run: Conformance) -> str:
    whole = [d for d in run.diagnosis if d.group]
    told = "; ".join(f"{d.field}={d.value!r} in {d.layers!r} ({d.explains:.3f}, {d.group})" for d in run.diagnosis[:4])
    if fault.field is None:
        return told or "explained" if run.explained or (whole and not fault.site) else ""
    if not whole or run.explained is False:
        return told or f"none, explained {run.explained}"
    top = whole[0]
    right = fault.field in top.field and top.layers == fault.layers
    if fault.value is not None:
        right = right and _same(top.value, fault.value)
    return "" if right else told


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool) or not isinstance(a, int | float) or not isinstance(b, int | float):
        return a == b
    return abs(a - b) <= 1e-3 * abs(b)


def _others(fault: Fault, run: Conformance) -> str:
    """Layers that are blamed and have no fault."""
    first = fault.site.split("layers.")[-1].split(".")[0] if "layers." in fault.site else ""
    mine = numbers(fault.layers or first)
    mine |= {1, 2} if fault.name == "layers_swapped" else set[int]()
    failed = [s.site for s in run.sites if s.passed is False and s.mode == "local"]
    layers = {p.layer for s in failed if (p := parse(s)) is not None and p.layer is not None}
    layers |= {n for d in run.diagnosis for n in numbers(d.layers)}
    strange = layers - mine
    outer = [s for s in failed if "layers." not in s] if mine and fault.name != "eps_everywhere" else []
    return f"layers {sorted(strange)} {outer}" if strange or outer else ""
