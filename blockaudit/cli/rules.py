"""`blockaudit rules`: every rule, one line each; as markdown it is docs/rules.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any

import typer

from blockaudit.cli import completion, options, output
from blockaudit.errors import RequestError
from blockaudit.report.escape import escape
from blockaudit.report.layout import Span, paint, table
from blockaudit.rules import registry
from blockaudit.rules.documentation import SECTIONS, documentation, group, row
from blockaudit.rules.fields import rule_sources
from blockaudit.rules.registry import Entry

FORMATS = ("text", "json", "markdown")
STYLE = {"error": "bad", "warning": "warn", "note": "note"}

Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="Format on stdout: text, json or markdown.",
        autocompletion=completion.one_of(*FORMATS),
    ),
]


def rules(format_name: Format = "text", no_color: options.NoColor = False) -> int:
    """List every rule: code, name, default severity and what it finds."""
    if format_name not in FORMATS:
        raise RequestError(f"unknown format {format_name!r}: blockaudit rules writes {', '.join(FORMATS)}")
    entries = registry.entries()
    if format_name == "json":
        output.say(json.dumps([row(e) for e in entries], indent=1) + "\n")
    elif format_name == "markdown":
        output.say(markdown(entries))
    else:
        output.say(_text(entries, output.wants_color(no_color)))
    return 0


def _text(entries: Sequence[Entry], color: bool) -> str:
    return paint(table([line_of_rule(row(e)) for e in entries]), color)


def line_of_rule(rule: dict[str, Any]) -> list[Span]:
    """One row of the list."""
    return [
        (rule["code"], "head"),
        (rule["name"], ""),
        (rule["severity"], STYLE[rule["severity"]]),
        (escape(rule["summary"]), ""),
    ]


def markdown(entries: Sequence[Entry]) -> str:
    """docs/rules.md, whole."""
    lines = [
        "# Rules",
        "",
        "Written by `blockaudit rules --format markdown` from the rules themselves; a test holds it current.",
        "The severity is the default one; the README says which findings can be milder.",
    ]
    for letter, members in groupby(entries, key=lambda e: e.rule.code[0]):
        mine = list(members)
        lines += ["", f"## {letter}: {group(letter)}", "", "| code | name | severity | finds |", "|---|---|---|---|"]
        for entry in mine:
            rule, said = entry.rule, documentation(entry)
            link = f"[{rule.code}](#{anchor(entry)})"
            lines.append(f"| {link} | `{rule.name}` | {rule.severity} | {_prose(said.summary)} |")
        for entry in mine:
            lines += ["", *_section(entry)]
    return "\n".join(lines) + "\n"


def anchor(entry: Entry) -> str:
    """What a reader's browser calls the heading of a rule."""
    return f"{entry.rule.code.lower()}-{entry.rule.name}"


def _section(entry: Entry) -> list[str]:
    rule, said = entry.rule, documentation(entry)
    facts = f"Severity: {rule.severity}"
    facts += ", and leaves the audit unverified" if rule.unverified else ""
    facts += "" if rule.waivable else ", and cannot be waived"
    facts += f". Failures of the lab: {', '.join(map(str, rule.lab))}" if rule.lab else ""
    lines = [f"### {rule.code} {rule.name}", "", _prose(said.summary), "", f"{facts}.", ""]
    lines += [f"- **{name}.** {_prose(said.sections[name])}" for name in SECTIONS]
    sources = rule_sources(rule)
    return lines + ([f"- **Where it comes from.** {_prose('; '.join(sources))}"] if sources else [])


def _prose(text: str) -> str:
    """Text of a docstring as markdown shows it as it is: names keep their underscores, stars and braces."""
    return "".join(f"\\{c}" if c in "\\`*_<>|[]" else c for c in text)
