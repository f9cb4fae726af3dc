"""What a rule says of itself: the sections of its module's docstring, for `rules`, `explain` and docs/rules.md."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

from blockaudit.records.report import RuleText
from blockaudit.rules.fields import rule_sources
from blockaudit.rules.registry import Entry, entries

SECTIONS = ("What it means", "Why it matters", "Example", "What to do")
GROUPS = {
    "F": "files",
    "K": "keys",
    "S": "shapes and dtypes",
    "C": "configuration",
    "N": "norms",
    "T": "topology and call order",
    "V": "trace conformance",
    "M": "migration",
    "R": "release",
    "P": "policies",
}


@dataclass(frozen=True, slots=True)
class Documentation:
    """A rule's docstring: its first line, and each section as one paragraph."""

    summary: str
    sections: dict[str, str]


def documentation(entry: Entry) -> Documentation:
    """The docstring of a rule's module, taken apart at the section headings."""
    lines = inspect.cleandoc(entry.doc).splitlines()
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines[1:]:
        if line.endswith(":") and not line.startswith(" "):
            current = sections.setdefault(line.removesuffix(":"), [])
        else:
            current.append(line.strip())
    return Documentation(lines[0], {name: " ".join(filter(None, body)) for name, body in sections.items()})


def group(code: str) -> str:
    """What the letter of a code stands for."""
    return GROUPS[code[0]]


@cache
def texts() -> tuple[RuleText, ...]:
    """Every rule's documentation as a record, by code."""
    return tuple(text(entry) for entry in entries())


def text(entry: Entry) -> RuleText:
    """One rule's documentation as a record."""
    rule, said = entry.rule, documentation(entry)
    sections = tuple((name, said.sections[name]) for name in SECTIONS if name in said.sections)
    return RuleText(rule.code, rule.name, rule.severity, group(rule.code), said.summary, rule.help, sections, rule.lab)


def row(entry: Entry) -> dict[str, Any]:
    """One rule in one line, as data."""
    rule = entry.rule
    return {
        "code": rule.code,
        "name": rule.name,
        "severity": rule.severity,
        "summary": documentation(entry).summary,
    }


def full(entry: Entry) -> dict[str, Any]:
    """One rule in full, as data."""
    rule, said = entry.rule, documentation(entry)
    return {
        **row(entry),
        "group": group(rule.code),
        "leaves_unverified": rule.unverified,
        "waivable": rule.waivable,
        "lab": list(rule.lab),
        "help": rule.help,
        **{name.lower().replace(" ", "_"): said.sections.get(name, "") for name in SECTIONS},
        "sources": list(rule_sources(rule)),
    }
