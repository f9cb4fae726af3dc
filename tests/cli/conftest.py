from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from blockaudit import pipeline
from blockaudit.cli.main import run
from blockaudit.errors import RequestError
from blockaudit.records.report import Report
from tests.report import samples


@dataclass(frozen=True)
class Outcome:
    """What one command line did."""

    status: int
    out: str
    err: str


@pytest.fixture
def blockaudit(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command line in this process."""

    def invoke(*argv: str | os.PathLike[str]) -> Outcome:
        status = run([os.fspath(a) for a in argv])
        return Outcome(status, *capfd.readouterr())

    return invoke


@pytest.fixture
def audits(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Put a pipeline in place that answers by the source's name; the list is what it was asked."""
    asked: list[dict[str, Any]] = []
    answers = {"good": samples.ACCEPTED, "bad": samples.REJECTED, "open": samples.UNVERIFIED}

    def inspect(source: str, *, select: Sequence[str] = (), **options: Any) -> Report:
        asked.append({"source": source, "select": select, **options})
        name = os.path.basename(source)
        if name not in answers:
            raise RequestError(f"no such file or folder: {source!r}")
        answer = answers[name]
        return replace(answer, subject=replace(answer.subject, source=source))

    monkeypatch.setattr(pipeline, "inspect", inspect)
    return asked
