"""`blockaudit explain`: one rule in full."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from blockaudit.cli import options, output
from blockaudit.cli.rules import STYLE
from blockaudit.errors import RequestError
from blockaudit.report.escape import escape
from blockaudit.report.layout import Line, paint, wrapped
from blockaudit.rules import registry
from blockaudit.rules.documentation import SECTIONS, documentation, full
from blockaudit.rules.registry import Entry

FORMATS = ("text", "json")

Code = Annotated[str, typer.Argument(metavar="CODE|NAME", help="A rule: N201 or epsilon-mismatch.")]
Format = Annotated[str, typer.Option("--format", metavar="FORMAT", help="Format on stdout: text or json.")]


def explain(code: Code, format_name: Format = "text", no_color: options.NoColor = False) -> int:
    """Explain one rule: what it means, why it matters, an example, what to do."""
    if format_name not in FORMATS:
        raise RequestError(f"unknown format {format_name!r}: blockaudit explain writes {' or '.join(FORMATS)}")
    entry = registry.find(code)
    if format_name == "json":
        output.say(json.dumps(full(entry), indent=1) + "\n")
    else:
        output.say(paint(_text(entry, output.width()), output.wants_color(no_color)))
    return 0


def _text(entry: Entry, width: int) -> list[Line]:
    rule, said = entry.rule, documentation(entry)
    lines: list[Line] = [
        ((rule.code, "head"), (f" {rule.name}  ", "head"), (rule.severity, STYLE[rule.severity]), *_facts(full(entry))),
        *wrapped("", escape(said.summary), width),
    ]
    for name in SECTIONS:
        lines += [(), ((name, "head"),), *wrapped("  ", escape(said.sections[name]), width)]
    return lines


def _facts(rule: dict[str, Any]) -> Line:
    """What else the first line says: the group, the verdict, the lab."""
    facts = [rule["group"]]
    if rule["leaves_unverified"]:
        facts.append("leaves the audit unverified")
    if rule["lab"]:
        facts.append(f"lab {', '.join(map(str, rule['lab']))}")
    return ((f"  ({'; '.join(facts)})", "dim"),)
