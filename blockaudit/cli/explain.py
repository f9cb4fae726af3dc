"""`blockaudit explain`: one rule, or one field of the contract, in full."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from blockaudit.cli import completion, explain_field, options, output
from blockaudit.cli.rules import STYLE
from blockaudit.errors import RequestError
from blockaudit.report.escape import escape
from blockaudit.report.layout import Line, paint, wrapped
from blockaudit.rules import registry
from blockaudit.rules.documentation import SECTIONS, documentation, full
from blockaudit.rules.registry import Entry

FORMATS = ("text", "json")

Code = Annotated[
    str,
    typer.Argument(
        metavar="CODE|NAME|FIELD",
        help="A rule (N201, epsilon-mismatch) or rules that begin so (N2), a field of the contract "
        "(decoder.final_norm.epsilon, epsilon), or a place with its fields (decoder.final_norm).",
        autocompletion=completion.rule,
    ),
]
Manifest = Annotated[
    str | None,
    typer.Option(
        metavar="ID|FILE",
        help="What this manifest says of the field, and from where.",
        autocompletion=completion.manifest,
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format", metavar="FORMAT", help="Format on stdout: text or json.", autocompletion=completion.one_of(*FORMATS)
    ),
]


def explain(
    code: Code, manifest: Manifest = None, format_name: Format = "text", no_color: options.NoColor = False
) -> int:
    """Explain a rule or a field: what it means, why it matters, who can speak to it, where it comes from."""
    if format_name not in FORMATS:
        raise RequestError(f"unknown format {format_name!r}: blockaudit explain writes {' or '.join(FORMATS)}")
    if registry.known(code):
        if manifest is not None:
            raise RequestError(f"--manifest goes with a field of the contract, and {code!r} is a rule")
        data, text = _rule(registry.find(code))
    else:
        data, text = explain_field.explained(code, manifest)
    if format_name == "json":
        output.say(json.dumps(data, indent=1) + "\n")
    else:
        output.say(paint(text(output.width()), output.wants_color(no_color)))
    return 0


def _rule(entry: Entry) -> explain_field.Explained:
    return full(entry), lambda width: _text(entry, width)


def _text(entry: Entry, width: int) -> list[Line]:
    rule, said, data = entry.rule, documentation(entry), full(entry)
    lines: list[Line] = [
        ((rule.code, "head"), (f" {rule.name}  ", "head"), (rule.severity, STYLE[rule.severity]), *_facts(data)),
        *wrapped("", escape(said.summary), width),
    ]
    for name in SECTIONS:
        lines += [(), ((name, "head"),), *wrapped("  ", escape(said.sections[name]), width)]
    return lines + explain_field.sources(data["sources"], width)


def _facts(rule: dict[str, Any]) -> Line:
    """What else the first line says: the group, the verdict, the lab."""
    facts = [rule["group"]]
    if rule["leaves_unverified"]:
        facts.append("leaves the audit unverified")
    if not rule["waivable"]:
        facts.append("cannot be waived")
    if rule["lab"]:
        facts.append(f"failure lab {', '.join(map(str, rule['lab']))}")
    return ((f"  ({'; '.join(facts)})", "dim"),)
