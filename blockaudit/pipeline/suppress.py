"""The one place where findings meet waivers and a baseline: what is left of them decides the verdict."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from blockaudit.errors import UnwrittenError
from blockaudit.records.report import Finding, Report
from blockaudit.records.suppression import Baseline, Waiver
from blockaudit.rules import p103_waiver_expired, registry

# Makes the report, with its verdict, of the findings that count.
Build = Callable[[tuple[Finding, ...]], Report]


class Suppression(msgspec.Struct, frozen=True):
    """What takes findings out of the verdict of one audit, and the file that is to hold what they are now."""

    waivers: tuple[Waiver, ...] = ()
    baseline: Path | None = None
    write_baseline: Path | None = None
    known: Baseline | None = None  # what `baseline` holds


def suppression(
    waivers: Sequence[Waiver],
    baseline: str | os.PathLike[str] | None,
    write_baseline: str | os.PathLike[str] | None,
) -> Suppression:
    """Raises RequestError where the baseline cannot be read: before any work is done."""
    target = None if write_baseline is None else Path(write_baseline)
    if baseline is None:
        return Suppression(tuple(waivers), None, target)
    from blockaudit.suppress.baseline import load

    return Suppression(tuple(waivers), Path(baseline), target, load(Path(baseline)))


def settled(
    build: Build,
    found: tuple[Finding, ...],
    rules: Sequence[registry.Entry],
    source: str,
    by: Suppression,
) -> Report:
    """The report of what was found, less what waivers and the baseline take out of it.

    A baseline that is to be written has every finding that no waiver covers, and is what the report is held to.
    """
    if by == Suppression():
        return build(found)
    from blockaudit.suppress import baseline as baselines
    from blockaudit.suppress import hold

    waived = hold.waive(found, by.waivers, source, _today(by.waivers))
    stand, suppressed = waived.findings, waived.suppressed
    seen = build(stand)
    unused = [hold.told(w, stand) for w in waived.unused if _could_have_covered(w, rules, seen.conformance is not None)]
    known = by.known if by.write_baseline is None else baselines.of_findings(seen, stand)
    if known is not None:
        stand, old, missing = hold.drop_known(stand, known)
        suppressed += old
        if missing and baselines.comparable(known, seen.kind, seen.level):
            unused.append(_stale(by.baseline, missing))
    asked = any(entry.rule == p103_waiver_expired.RULE for entry in rules)
    expired = p103_waiver_expired.of(waived.expired) if asked else ()
    report = replace(build(registry.ordered([*stand, *expired])), suppressed=suppressed, unused=tuple(unused))
    if by.write_baseline is not None and known is not None:
        _write(by.write_baseline, known, report)
    return report


def _today(waivers: Sequence[Waiver]) -> str:
    """The clock is asked where a date depends on it, and nowhere else."""
    from blockaudit.suppress.clock import today

    return today() if waivers else ""


def _could_have_covered(waiver: Waiver, rules: Sequence[registry.Entry], numbers: bool) -> bool:
    """Whether any rule of a waiver was asked at all: those of numbers speak where numbers were run alone."""
    named = [e.rule for e in rules if registry.names(waiver.rule, e.rule.code, e.rule.name)]
    return any(numbers or not rule.code.startswith("V") for rule in named)


def _stale(baseline: Path | None, missing: int) -> str:
    entries = "entry is" if missing == 1 else "entries are"
    return f"baseline {str(baseline)!r}: {missing} {entries} no longer found; --write-baseline writes it again"


def _write(path: Path, known: Baseline, report: Report) -> None:
    from blockaudit.suppress.baseline import render

    try:
        path.write_text(render(known), encoding="utf-8")
    except OSError as error:
        raise UnwrittenError(f"cannot write --write-baseline {str(path)!r}: {error.strerror}", report) from error
