"""A waiver is past its last day, and the finding that it covered is still there.

What it means:
    Somebody accepted a finding until a date, and that date is over. The waiver holds nothing back any more: the finding
    stands beside this one and counts as it would without it.

Why it matters:
    A waiver is a promise to look again. One that never ends is a rule that was switched off, and nobody remembers why.

Example:
    expires = 2026-01-31, audited on 2026-02-01. On the last day itself a waiver still holds.

What to do:
    Mend what the finding names, or have the waiver's owner renew it with a new date and a reason that still holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from blockaudit.records.report import Finding
from blockaudit.records.suppression import Waiver
from blockaudit.rules.base import Rule

RULE = Rule(
    "P103",
    "waiver-expired",
    "mend what the finding names, or have the waiver's owner renew it",
    waivable=False,
)

# Findings of one waiver that are named; the rest is a number.
_NAMED = 3


def of(expired: Iterable[tuple[Waiver, Sequence[Finding]]]) -> Iterator[Finding]:
    """One finding for each waiver past its day; no clock speaks in it, so that the report of tomorrow is the same."""
    for waiver, stand in expired:
        named = ", ".join(f"{f.code} at {f.subject}" for f in stand[:_NAMED])
        more = f" and {len(stand) - _NAMED} more" if len(stand) > _NAMED else ""
        finding = RULE.finding(
            stand[0].subject,
            f"the waiver of {waiver.rule} held until {waiver.expires}, and what it covered is there: {named}{more}",
            observed=waiver.expires,
            evidence=f"{waiver.owner}: {waiver.reason}",
        )
        yield replace(finding, places=(waiver.place,) if waiver.place is not None else ())
