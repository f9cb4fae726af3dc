"""The verdict in words: why it is what it is, and which manifest it rests on."""

from __future__ import annotations

from blockaudit.records.report import Report
from blockaudit.report.escape import escape
from blockaudit.report.words import count, shortened

# Findings that leave an audit unverified by themselves (contract section 4).
_UNVERIFYING = (
    "unknown-architecture", "adapter-only", "config-missing", "graph-unclassified", "site-missing",
    "probe-insufficient",
)  # fmt: skip


def chosen(report: Report) -> str:
    """Which manifest it was held to, how that was chosen and how sure it is."""
    choice = report.manifest
    if choice is None:
        return "no manifest"
    by = {"flag": "given by --manifest", "config": "chosen by config", "keys": "chosen by keys"}[choice.chosen_by]
    sure = "" if choice.confidence >= 1 else f", {choice.confidence:.0%} sure"
    return f"{escape(choice.id)}, {by}{sure}"


def why(report: Report) -> str:
    """What rejects, or what keeps it unverified; empty where it was accepted."""
    if report.verdict == "rejected":
        return _why_rejected(report)
    return _why_unverified(report) if report.verdict == "unverified" else ""


def _why_rejected(report: Report) -> str:
    # Without an error it was --strict that rejected.
    severity = "error" if report.count("error") else "warning"
    reasons = [finding for finding in report.findings if finding.severity == severity]
    number = count(len(reasons), severity) + (", first" if len(reasons) > 1 else "")
    return ": ".join([number, *(f"{f.code} {f.name}: {shortened(f.message)}" for f in reasons[:1])])


def _why_unverified(report: Report) -> str:
    named = [f for f in report.findings if f.name in _UNVERIFYING]
    if named:
        return f"{named[0].code} {named[0].name}: {shortened(named[0].message)}"
    open_fields = [escape(row.field) for row in report.contract if row.required and not row.known]
    if not open_fields:
        return "no two witnesses could be compared"
    shown = ", ".join(open_fields[:3]) + (f" and {len(open_fields) - 3} more" if len(open_fields) > 3 else "")
    return f"no witness speaks of {count(len(open_fields), 'field')} that this level requires: {shown}"
