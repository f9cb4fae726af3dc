"""Findings as a page lists them: bounded, counted by rule, with what is long folded."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from blockaudit.records.report import SEVERITIES, Finding, Severity
from blockaudit.report.words import value

# Findings in full, rules in the overview; tensor names of one finding and of the page; names that are not folded.
_FINDINGS, _RULES, _TENSORS, _NAMES, _OPEN = 200, 80, 200, 2000, 3

# What the letter of a code says (contract section 4).
GROUPS = {
    "F": "files", "K": "keys", "S": "shapes", "C": "configuration", "N": "norms", "T": "topology",
    "V": "conformance", "M": "migration", "R": "release", "P": "policy",
}  # fmt: skip


class Item(msgspec.Struct, frozen=True):
    """One finding; `details` are pairs of label and text, `tensors` the names shown, `more` how many are not."""

    finding: Finding
    details: tuple[tuple[str, str], ...]
    tensors: tuple[str, ...]
    folded: bool
    more: int


class RuleCount(msgspec.Struct, frozen=True):
    """How often one rule spoke, over all findings."""

    code: str
    name: str
    severity: Severity
    count: int


class Listed(msgspec.Struct, frozen=True):
    """All that the section of findings shows; `cut` and `cut_rules` say how many it does not."""

    items: tuple[Item, ...]
    cut: int
    counts: tuple[tuple[Severity, int], ...]
    groups: tuple[tuple[str, str], ...]
    rules: tuple[RuleCount, ...]
    cut_rules: int


def listed(findings: Sequence[Finding]) -> Listed:
    """The findings in their order, the first of them where there are more than anybody reads."""
    rules: dict[tuple[str, str, Severity], int] = {}
    for f in findings:
        key = (f.code, f.name, f.severity)
        rules[key] = rules.get(key, 0) + 1
    counted = [RuleCount(*key, count) for key, count in rules.items()]
    return Listed(
        items=items(findings[:_FINDINGS]),
        cut=max(len(findings) - _FINDINGS, 0),
        counts=tuple((s, n) for s in SEVERITIES if (n := sum(f.severity == s for f in findings))),
        groups=tuple((letter, GROUPS[letter]) for letter in sorted({f.code[:1] for f in findings} & GROUPS.keys())),
        rules=tuple(counted[:_RULES]),
        cut_rules=max(len(counted) - _RULES, 0),
    )


def items(findings: Sequence[Finding]) -> tuple[Item, ...]:
    """The findings prepared; the more there are, the fewer tensors each of them names."""
    most = min(_TENSORS, _NAMES // max(len(findings), 1))
    return tuple(_item(finding, most) for finding in findings)


def _item(finding: Finding, most: int) -> Item:
    shown = finding.tensors[:most]
    return Item(finding, tuple(_details(finding)), shown, len(shown) > _OPEN, len(finding.tensors) - len(shown))


def _details(finding: Finding) -> list[tuple[str, str]]:
    details: list[tuple[str, str]] = []
    # None on one side alone says something: "expected -" where a thing should not be there.
    if finding.expected is not None or finding.observed is not None:
        details += [("expected", value(finding.expected)), ("found", value(finding.observed))]
    if finding.layers:
        details.append(("layers", finding.layers))
    if finding.also:
        details.append(("also at", ", ".join(finding.also)))
    if finding.evidence:
        details.append(("evidence", finding.evidence))
    if finding.places:
        places = [f"{p.path}:{p.line}" if p.line else p.path for p in finding.places[:_OPEN]]
        more = len(finding.places) - len(places)
        details.append(("where", ", ".join(places) + (f" and {more} more" if more else "")))
    if finding.help:
        details.append(("what to do", finding.help))
    return details
