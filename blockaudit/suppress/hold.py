"""Findings, divided: those that count, those that somebody answers for, and what nobody needed any more."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from blockaudit.records.report import Finding, Suppressed
from blockaudit.records.suppression import Baseline, Waiver
from blockaudit.suppress import baseline as baselines
from blockaudit.suppress.matching import covers, covers_part, of_source, waivable
from blockaudit.suppress.waivers import said


class Waived(msgspec.Struct, frozen=True):
    """What waivers make of findings. `expired` are waivers past their day, each with the findings that stand for it."""

    findings: tuple[Finding, ...]
    suppressed: tuple[Suppressed, ...] = ()
    expired: tuple[tuple[Waiver, tuple[Finding, ...]], ...] = ()
    unused: tuple[Waiver, ...] = ()


def waive(findings: Sequence[Finding], waivers: Sequence[Waiver], source: str, today: str) -> Waived:
    """Findings that a waiver covers are suppressed by the first that still holds; where none does, they stand."""
    stand: list[Finding] = []
    suppressed: list[Suppressed] = []
    used: set[int] = set()
    expired: dict[int, list[Finding]] = {}
    for finding in findings:
        over = [number for number, waiver in enumerate(waivers) if covers(waiver, finding, source)]
        holding = [number for number in over if waivers[number].expires >= today]
        if holding:
            waiver = waivers[holding[0]]
            suppressed.append(Suppressed(finding, "waiver", waiver.reason, waiver.owner, waiver.expires))
            used.update(holding)
            continue
        stand.append(finding)
        for number in over:
            expired.setdefault(number, []).append(finding)
    return Waived(
        tuple(stand),
        tuple(suppressed),
        tuple((waivers[number], tuple(expired[number])) for number in sorted(expired)),
        tuple(w for n, w in enumerate(waivers) if n not in used | expired.keys() and of_source(w.scope, source)),
    )


def drop_known(
    findings: Sequence[Finding], baseline: Baseline
) -> tuple[tuple[Finding, ...], tuple[Suppressed, ...], int]:
    """Findings that a baseline lacks, those that it has, and how many of its entries were not found."""
    known = {(k.code, k.subject, k.fingerprint) for k in baseline.findings}
    keys = [baselines.key(f) if waivable(f) else None for f in findings]
    new = tuple(f for f, key in zip(findings, keys, strict=True) if key not in known)
    old = tuple(Suppressed(f, "baseline") for f, key in zip(findings, keys, strict=True) if key in known)
    return new, old, len(known - {*keys})


def told(waiver: Waiver, findings: Sequence[Finding]) -> str:
    """A waiver that covered nothing, in one line; where a finding has more places than it covers, that is why."""
    where = f"{said(waiver.place)}: " if waiver.place is not None else ""
    scope = ", ".join(f"{n} {v}" for n in waiver.scope.__struct_fields__ if (v := getattr(waiver.scope, n)))
    part = next((f for f in findings if covers_part(waiver, f)), None)
    why = f": {part.code} is at {', '.join((part.subject, *part.also))}, all or none" if part is not None else ""
    return f"{where}the waiver of {waiver.rule} ({scope}; {waiver.owner}) covers no finding{why}"
