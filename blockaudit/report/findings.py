"""Findings in the terminal: what, where, expected against found, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from blockaudit.records.report import Finding, Severity
from blockaudit.report.layout import Line, wrapped
from blockaudit.report.words import count, several, shortened, value

_STYLE: dict[Severity, str] = {"error": "bad", "warning": "warn", "note": "note"}
# Tensor names that a finding shows; the rest is a number.
_TENSORS = 4
# Findings that are shown: a hostile header may give one for each of a million keys.
_FINDINGS = 200


def findings(found: Sequence[Finding], width: int) -> list[Line]:
    """Every finding, each after an empty line; of more than anybody reads, the first."""
    lines = [line for finding in found[:_FINDINGS] for line in _finding(finding, width)]
    if len(found) > _FINDINGS:
        rest = count(len(found) - _FINDINGS, "more finding")
        lines += [(), *wrapped("", f"and {rest} (whole in --format json)", width)]
    return lines


def _finding(finding: Finding, width: int) -> list[Line]:
    head: Line = (
        (finding.severity, _STYLE[finding.severity]),
        (f" {finding.code} {finding.name}", "head"),
        (f"  {shortened(finding.subject)}", ""),
    )
    lines: list[Line] = [(), head, *wrapped("  ", shortened(finding.message), width)]
    for label, text in _details(finding):
        lines += wrapped(f"  {label:<10}  ", text, width)
    return lines


def _details(finding: Finding) -> list[tuple[str, str]]:
    details: list[tuple[str, str]] = []
    # None on one side only says something: "expected -" where a thing should not be there.
    if finding.expected is not None or finding.observed is not None:
        details += [("expected", shortened(value(finding.expected))), ("found", shortened(value(finding.observed)))]
    if finding.evidence:
        details.append(("evidence", shortened(finding.evidence)))
    if finding.tensors:
        details.append(("tensors", several(finding.tensors, _TENSORS)))
    if finding.help:
        details.append(("what to do", shortened(finding.help)))
    return details
