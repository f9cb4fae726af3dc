"""Findings that do not count, in the terminal: what each is, and on whose word it does not."""

from __future__ import annotations

from collections.abc import Sequence

from blockaudit.records.report import Suppressed
from blockaudit.report.layout import Line, wrapped
from blockaudit.report.words import count, shortened

# Of a baseline's findings, which a team has agreed not to read, this many are listed; of waivers all.
_LISTED = 10
_MOST = 200


def suppressed(found: Sequence[Suppressed], width: int) -> list[Line]:
    """Waived findings with who answers for them, then those that the baseline has."""
    if not found:
        return []
    waived = [one for one in found if one.by == "waiver"]
    known = [one for one in found if one.by == "baseline"]
    title = f"Suppressed: {count(len(found), 'finding')} that {'does' if len(found) == 1 else 'do'} not count"
    lines: list[Line] = [(), ((title, "head"),)]
    for one in waived[:_MOST]:
        lines += [*_finding(one, width), *wrapped("    ", word(one), width)]
    lines += _more(len(waived) - _MOST, "more waived finding", width)
    if known:
        lines += wrapped("  ", f"in the baseline: {count(len(known), 'finding')}", width)
        lines += [line for one in known[:_LISTED] for line in _finding(one, width)]
        lines += _more(len(known) - _LISTED, "more finding", width)
    return lines


def word(one: Suppressed) -> str:
    """`waived until 2026-12-31 by OWNER: REASON`."""
    if one.by == "baseline":
        return "in the baseline"
    return f"waived until {shortened(one.expires)} by {shortened(one.owner)}: {shortened(one.reason)}"


def _finding(one: Suppressed, width: int) -> list[Line]:
    finding = one.finding
    head = f"{finding.severity} {finding.code} {finding.name}  {shortened(finding.subject)}"
    return [((f"  {head}", "dim"),), *wrapped("    ", shortened(finding.message), width, "dim")]


def _more(number: int, noun: str, width: int) -> list[Line]:
    return wrapped("  ", f"and {count(number, noun)} (whole in --format json)", width) if number > 0 else []
