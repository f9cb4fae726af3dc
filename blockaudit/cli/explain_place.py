"""What is no single rule or field: a place of the contract with the fields below it, and rules that begin alike."""

from __future__ import annotations

import re
from typing import Any

from blockaudit import resources
from blockaudit.cli.explain_field import Explained, meaning
from blockaudit.cli.rules import line_of_rule
from blockaudit.errors import RequestError
from blockaudit.report.escape import escape
from blockaudit.report.layout import Line, cells, pad, table, wrapped
from blockaudit.rules import registry
from blockaudit.rules.documentation import row
from blockaudit.rules.fields import field

_PARTS = "parts"
# The code of a rule, or its beginning, in lower case.
_CODE = re.compile(r"[a-z]\d*", re.ASCII)


def explained(name: str, manifest: str | None) -> Explained | None:
    """A place (`encoder.mlp.norm_post`), or rules that begin so (`N1`); None for what is neither.

    Raises RequestError for a part, which is a place without fields.
    """
    ends = _below(name, manifest)
    if ends:
        return _place(name, ends)
    if name == _PARTS or name.startswith(f"{_PARTS}."):
        raise RequestError(
            f"{name!r} has no fields of the contract: parts (a head, a pooler) are held to their keys, shapes and ties "
            "(docs/report.md)"
        )
    return _rules(name) if manifest is None else None


def _below(name: str, manifest: str | None) -> list[str]:
    """What follows a place in names of fields, of one manifest or of every one in the library written by hand."""
    from blockaudit.manifest.bind import bind
    from blockaudit.manifest.load import library, load

    asked = [load(manifest)] if manifest is not None else map(library, resources.handmade_ids())
    named = re.compile(rf"(?:^|\.){re.escape(name)}\.(.+)", re.DOTALL)
    fields = (one for loaded in asked for one in bind(loaded.manifest, {}).fields)
    return list(dict.fromkeys(found[1] for one in fields if (found := named.search(one))))


def _place(name: str, ends: list[str]) -> Explained:
    rows = [{"field": f"{name}.{end}", "meaning": _meaning(f"{name}.{end}")} for end in ends]
    data: dict[str, Any] = {"place": name, "fields": rows}

    def text(width: int) -> list[Line]:
        widest = max(cells(escape(end)) for end in ends)
        lines: list[Line] = [((escape(name), "head"), ("  (place of the contract; these are its fields)", "dim"))]
        for end, said in zip(ends, rows, strict=True):
            lines += wrapped(f"  {pad(escape(end), widest)}  ", escape(said["meaning"]), width)
        return [*lines, (), *wrapped("", f"In full: blockaudit explain {escape(rows[0]['field'])}", width)]

    return data, text


def _meaning(name: str) -> str:
    found = field(name)
    return meaning(found) if found is not None else ""


def _rules(name: str) -> Explained | None:
    """Rules whose code or name begins so."""
    wanted = name.strip().lower()
    by_code = _CODE.fullmatch(wanted) is not None
    rows = [row(e) for e in registry.entries() if (e.rule.code.lower() if by_code else e.rule.name).startswith(wanted)]
    return ({"rules": rows}, lambda _: table([line_of_rule(one) for one in rows])) if wanted and rows else None


def near_code(name: str) -> str:
    """For a code that there is not: which codes its group has; empty for what looks like no code."""
    if not _CODE.fullmatch(name.lower()):
        return ""
    codes = [e.rule.code for e in registry.entries() if e.rule.code[0] == name[0].upper()]
    return f"; its group has {codes[0]} to {codes[-1]}" if codes else ""
