"""The verdict in words: why it is what it is, and which manifest it rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from blockaudit.records.report import Finding, Report
from blockaudit.report.escape import escape
from blockaudit.report.words import count, shortened

# Findings that leave an audit unverified by themselves (contract section 4).
_UNVERIFYING = (
    "unknown-architecture", "adapter-only", "config-missing", "graph-unclassified", "site-missing",
    "probe-insufficient",
)  # fmt: skip
# Rules that a verdict names after the first finding; the findings follow it.
_RULES = 4


def chosen(report: Report) -> str:
    """Which manifest it was held to, how that was chosen and how sure it is."""
    choice = report.manifest
    if choice is None:
        return "no manifest"
    if report.kind in ("map", "conversion", "rejection"):
        return f"to {escape(choice.id)}"
    by = {"flag": "given by --manifest", "config": "chosen by config", "keys": "chosen by keys"}[choice.chosen_by]
    sure = "" if choice.confidence >= 1 else f", {choice.confidence:.0%} sure"
    return f"{escape(choice.id)}, {by}{sure}"


def held(report: Report) -> str:
    """What does not count, and on whose word: `1 finding waived, 2 in the baseline`; empty where everything counts."""
    by = Counter(one.by for one in report.suppressed)
    words = (("waiver", "waived"), ("baseline", "in the baseline"))
    said = [(by[one], word) for one, word in words if by[one]]
    # The noun stands once, at the first number.
    return ", ".join(f"{f'{n:,}' if at else count(n, 'finding')} {word}" for at, (n, word) in enumerate(said))


def why(report: Report) -> str:
    """What rejects, or what keeps it unverified; empty where it was accepted."""
    if report.verdict == "rejected":
        return _why_rejected(report)
    return _why_unverified(report) if report.verdict == "unverified" else ""


def _why_rejected(report: Report) -> str:
    # Without an error it was --strict that rejected.
    severity = "error" if report.count("error") else "warning"
    reasons = [finding for finding in report.findings if finding.severity == severity]
    if not reasons:
        return count(0, severity)
    first, *rest = reasons
    said = f"{first.code} {first.name}: {shortened(first.message)}"
    number = count(len(reasons), severity)
    return f"{number}, first: {said}; then {_rules(rest)}" if rest else f"{number}: {said}"


def _rules(findings: Sequence[Finding]) -> str:
    """The rules of findings, in order: `S101 shape-mismatch (3 times), K101 missing-key`."""
    times = Counter(f"{f.code} {f.name}" for f in findings)
    shown = [name + (f" ({n:,} times)" if n > 1 else "") for name, n in list(times.items())[:_RULES]]
    return ", ".join(shown) + (f" and {count(len(times) - _RULES, 'more rule')}" if len(times) > _RULES else "")


def _not_run(report: Report) -> str:
    """Why no numbers were compared: a waiver takes a finding out of the verdict, and mends nothing."""
    stops = [one for one in report.suppressed if one.finding.hinders]
    words = {"waiver": "waived", "baseline": "in the baseline"}
    said = ", ".join(f"{one.finding.code} {one.finding.name} ({words[one.by]})" for one in stops[:_RULES])
    more = f" and {count(len(stops) - _RULES, 'more finding')}" if len(stops) > _RULES else ""
    stand = "stands" if len(stops) == 1 else "stand"
    return f"nothing was run, for {said}{more} {stand}: a checkpoint with such a fault runs only once it is mended"


def _why_unverified(report: Report) -> str:
    if report.kind == "conformance" and report.conformance is None:
        return _not_run(report)
    named = [f for f in report.findings if f.name in _UNVERIFYING]
    if named:
        return f"{named[0].code} {named[0].name}: {shortened(named[0].message)}"
    open_fields = [escape(row.field) for row in report.contract if row.required and not row.known]
    if not open_fields:
        return "no two witnesses could be compared"
    shown = ", ".join(open_fields[:3]) + (f" and {len(open_fields) - 3} more" if len(open_fields) > 3 else "")
    return f"no witness speaks of {count(len(open_fields), 'field')} that this level requires: {shown}"
