"""What a rule says of itself: the sections of its module's docstring, for `rules`, `explain` and docs/rules.md."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from blockaudit.rules.registry import Entry

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
        "lab": list(rule.lab),
        "help": rule.help,
        **{name.lower().replace(" ", "_"): said.sections.get(name, "") for name in SECTIONS},
    }
