"""docs/specification.md: the sections and failures that rules and fields cite, and which of ours rest on them."""

from __future__ import annotations

from blockaudit.rules import citations, registry
from blockaudit.rules.fields import FIELDS
from docs.generate.text import NOTICE, code, prose, table


def page() -> str:
    """The whole page."""
    lines = ["# The specification", "", NOTICE.format(" from `blockaudit/rules/citations.py`"), ""]
    lines += [
        "blockaudit was built from a written specification of the Transformer block: chapter M3.7, *Residual",
        "Stream, Normalization, and Block Assembly*. It does not ship with the code, and nothing here needs it.",
        "`blockaudit explain` and the [rules](rules.md) cite it by section (`0x02`), for readers who have it; this",
        "page has what each section and failure is called, and what of ours rests on it.",
        "",
        "## The failure lab",
        "",
        "Section `0x0D` is a list of known faults, the *failure lab*: `lab 12, 39` of a rule or a finding are its",
        "numbers.",
        "",
        *table(["failure", "what goes wrong", "rules that name it"], [_failure(n) for n in sorted(citations.LAB)]),
        "",
        "## Sections",
        "",
        *table(["section", "title", "fields of the contract"], [_section(one) for one in citations.SECTIONS]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _failure(number: int) -> list[str]:
    rules = [entry.rule.name for entry in registry.entries() if number in entry.rule.lab]
    return [str(number), prose(citations.LAB[number]), ", ".join(map(code, rules)) or "none in this release"]


def _section(one: str) -> list[str]:
    fields = [field.end for field in FIELDS if one in field.sections]
    return [code(one), prose(citations.SECTIONS[one]), ", ".join(map(code, fields))]
