"""Clean runs of `conform`: models with nothing wrong, with weights that hide nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blockaudit import pipeline
from blockaudit.graph.live import randomise
from blockaudit.records.report import Report
from tests.families import models


def checkpoint(folder: Path, family: str, seed: int = 11, **changes: Any) -> Path:
    """A tiny model of a family, every weight random: no gain is one and no bias zero."""
    model = models.build(family, **changes)
    randomise(model, seed)
    model.save_pretrained(folder)
    return folder


def conforms(source: Path, **options: Any) -> Report:
    """The report of a run in which nothing may fail and nothing may be said but notes."""
    report = pipeline.conform(source, **options)
    run = report.conformance
    assert run is not None
    failed = [
        (s.site, s.mode, s.dtype, s.metric, s.observed, s.tolerance, s.probe) for s in run.sites if s.passed is False
    ]
    assert failed == []
    # Of a head that is no language model's there is no reference.
    assert {s.site for s in run.sites if s.passed is None} <= {"logits"}
    assert [(f.name, f.subject, f.message) for f in report.findings if f.severity != "note"] == []
    assert report.verdict == "accepted"
    assert (run.first, run.diagnosis, run.missing, run.unexpected) == (None, (), (), ())
    return report
