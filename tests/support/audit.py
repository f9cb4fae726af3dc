"""Run `blockaudit inspect` in this process, and cases for tables: what fires a rule, and what nearly does."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockaudit.cli.main import run
from tests.support.checkpoint import Build

UNSET: Any = object()


@dataclass(frozen=True)
class Outcome:
    """What one command line did: exit status, the report on stdout (None where there is none), and stderr."""

    status: int
    report: dict[str, Any] | None
    err: str
    out: str

    @property
    def findings(self) -> list[dict[str, Any]]:
        assert self.report is not None, self.err
        return self.report["findings"]

    @property
    def names(self) -> list[str]:
        return [f["name"] for f in self.findings]

    @property
    def grave(self) -> list[str]:
        """Names of errors and warnings."""
        return [f["name"] for f in self.findings if f["severity"] != "note"]


def inspect(source: Path | str, *argv: str) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(["inspect", str(source), "--format", "json", *argv])
    text = out.getvalue()
    return Outcome(status, json.loads(text) if text else None, err.getvalue(), text)


@dataclass(frozen=True)
class Fires:
    """A checkpoint on which `rule` fires: once, and no other error or warning than `beside` with it."""

    rule: str
    name: str
    build: Build
    args: Sequence[str] = ()
    severity: str = "error"
    exit: int = 1
    subject: str | None = None
    expected: Any = UNSET
    observed: Any = UNSET
    says: Sequence[str] = ()  # parts of message or evidence
    tensors: Sequence[str] | int | None = None
    beside: Sequence[str] | None = ()  # None: whatever else is said
    times: int = 1


@dataclass(frozen=True)
class Near:
    """The nearest checkpoint on which `rule` must not fire; `beside` are the errors and warnings that it does have."""

    rule: str
    name: str
    build: Build
    args: Sequence[str] = ()
    exit: int = 0
    beside: Sequence[str] | None = ()


Case = Fires | Near


def ids(case: Case) -> str:
    return f"{case.rule}: {'' if isinstance(case, Fires) else 'not: '}{case.name}"


def check(case: Case, folder: Path) -> None:
    """Build it, audit it, and hold the report to the case."""
    source = case.build(folder / "ckpt")
    outcome = inspect(source, *(a.format(folder=folder) for a in case.args))
    shown = [(f["name"], f["severity"], f["subject"], f["message"]) for f in outcome.findings]
    if isinstance(case, Near):
        assert case.rule not in outcome.names, shown
        assert case.beside is None or sorted(outcome.grave) == sorted(case.beside), shown
        assert outcome.status == case.exit, (outcome.status, shown)
        return
    mine = [f for f in outcome.findings if f["name"] == case.rule]
    assert len(mine) == case.times, shown
    finding = mine[0]
    assert finding["severity"] == case.severity
    assert outcome.status == case.exit, (outcome.status, shown)
    others = sorted(name for name in outcome.grave if name != case.rule)
    assert case.beside is None or others == sorted(case.beside), shown
    if case.subject is not None:
        assert finding["subject"] == case.subject
    if case.expected is not UNSET:
        assert finding["expected"] == case.expected, finding
    if case.observed is not UNSET:
        assert finding["observed"] == case.observed, finding
    for part in case.says:
        assert part in f"{finding['message']} | {finding['evidence']} | {finding['help']}", finding
    if isinstance(case.tensors, int):
        assert len(finding["tensors"]) == case.tensors, finding["tensors"]
    elif case.tensors is not None:
        assert finding["tensors"] == list(case.tensors)
