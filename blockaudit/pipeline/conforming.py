"""`convert --conform`: what was written, run beside what it was made from, before it gets its name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from blockaudit.errors import RequestError
from blockaudit.migrate.convert.request import Conform, RejectedError
from blockaudit.pipeline.conform import conform
from blockaudit.pipeline.execution import needs_torch
from blockaudit.pipeline.traces import record_trace
from blockaudit.records.report import Report

# Both sides compute in it, whatever they store: what is left between them is its rounding.
_DTYPE = "float32"
_TRACE = "trace.safetensors"
_SOURCE = "every site of the source's class, recorded, against that of the target's"
_ITSELF = (
    "the target's class against the target's own manifest, executed: {why}; what ties the two is the map's proof alone"
)


class NotConformError(RejectedError):
    """What was written computes something else than it should. `report` is of kind conformance."""

    def __init__(self, report: Report) -> None:
        super().__init__("the target does not conform")
        self.report = report


def conforming(source: str) -> Conform:
    """A check of a target folder against a source. Raises RequestError where torch or transformers is missing.

    The check raises NotConformError, and RequestError where the target's own layout is one that no class here runs.
    """
    needs_torch()
    return lambda folder: _compared(source, folder)


def _compared(source: str, folder: str) -> dict[str, Any]:
    """Against the source where a class runs it, else against the target's manifest. Says which, and how much."""
    trace = Path(os.path.dirname(folder), _TRACE)
    try:
        record_trace(source, out=trace, dtype=_DTYPE)
    except RequestError as error:
        report = conform(folder, dtype=_DTYPE)
        what = _ITSELF.format(why=f"the source could not be run ({error})".replace(f"{source}: ", ""))
    else:
        report = conform(folder, reference=str(trace), mode="end-to-end", dtype=_DTYPE)
        what = _SOURCE
    finally:
        trace.unlink(missing_ok=True)
    run = report.conformance
    if report.verdict != "accepted" or run is None:
        raise NotConformError(report)
    judged = [site for site in run.sites if site.passed is not None]
    return {
        "said": f"{what}: all {len(judged):,} comparisons within tolerance",
        "against": "source" if what == _SOURCE else "manifest",
        "dtype": _DTYPE,
        "mode": run.mode,
        "comparisons": len(judged),
        "policy": run.policy,
    }
