"""Rules as SARIF describes them: everything that a viewer can show beside a finding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from blockaudit.records.report import Finding, Report, RuleText, Severity
from blockaudit.report.markdown_text import prose

# What GitHub's code scanning calls the severities of a quality rule.
_PROBLEM: dict[Severity, str] = {"error": "error", "warning": "warning", "note": "recommendation"}


def rules(report: Report, findings: Iterable[Finding]) -> dict[str, dict[str, Any]]:
    """Code -> descriptor, by code: of every rule that the report documents, and of those that its findings name."""
    texts = {text.code: text for text in report.rules}
    for finding in findings:
        texts.setdefault(finding.code, _of(finding))
    return {code: _descriptor(texts[code]) for code in sorted(texts)}


def _of(finding: Finding) -> RuleText:
    """What a finding says of its own rule: a report that was read from JSON carries no more."""
    summary = finding.name.replace("-", " ")
    return RuleText(finding.code, finding.name, finding.severity, "", summary, finding.help, (), finding.lab)


def _descriptor(rule: RuleText) -> dict[str, Any]:
    sections = dict(rule.sections)
    full = " ".join(sections[name] for name in ("What it means", "Why it matters") if name in sections)
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": full or rule.summary},
        "help": {"text": _help_text(rule), "markdown": _help_markdown(rule)},
        "defaultConfiguration": {"enabled": True, "level": rule.severity},
        "properties": {
            "tags": list(dict.fromkeys(filter(None, (rule.group, *(f"lab-{number}" for number in rule.lab))))),
            "lab": list(rule.lab),
            "precision": "very-high",
            "problem.severity": _PROBLEM[rule.severity],
        },
    }


def _help_text(rule: RuleText) -> str:
    said = rule.sections or (("What to do", rule.help),)
    return "\n\n".join([f"{rule.code} {rule.name}", *(f"{name}: {text}" for name, text in said)])


def _help_markdown(rule: RuleText) -> str:
    said = rule.sections or (("What to do", rule.help),)
    head = f"`blockaudit explain {rule.code}`"
    return "\n\n".join([f"**{rule.code} {rule.name}**", *(f"**{name}.** {prose(text)}" for name, text in said), head])
