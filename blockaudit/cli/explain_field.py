"""One field of the contract in full: its meaning, its witnesses, its rules, and where all that is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from blockaudit import resources
from blockaudit.errors import RequestError
from blockaudit.report.escape import escape
from blockaudit.report.layout import Line, wrapped
from blockaudit.report.words import value
from blockaudit.rules import citations, registry
from blockaudit.rules.fields import FIELDS, ContractField, field

# An explanation as data, and as lines of a given width.
Explained = tuple[dict[str, Any], Callable[[int], list[Line]]]
# Which command and level asks each witness.
_ASKED = {"stored": "headers", "executed": "--level graph", "measured": "conform"}


def explained(name: str, manifest: str | None) -> Explained:
    """A field by its whole name or its end, a place with its fields, or rules that begin so. Raises RequestError."""
    found = field(name)
    if found is None:
        from blockaudit.cli import explain_place

        place = explain_place.explained(name, manifest)
        if place is not None:
            return place
        near = explain_place.near_code(name) or _near(name)
        raise RequestError(f"no rule {name!r} and no field of the contract{near} (`blockaudit rules` lists the rules)")
    data = _general(name, found)
    if manifest is not None:
        data["manifest"] = _of_manifest(name, manifest)
        families = {row["value"] for row in data["manifest"]["fields"] if row["field"].endswith(".family")}
        data["sources"] += [f"{f}: {citations.PAPERS[f]}" for f in sorted(families & citations.PAPERS.keys())]
    return data, lambda width: _text(data, width)


def _near(name: str) -> str:
    from difflib import get_close_matches

    names = [e.rule.name for e in registry.entries()] + [f.end for f in FIELDS]
    near = get_close_matches(name.rpartition(".")[2], names, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _general(name: str, found: ContractField) -> dict[str, Any]:
    """What holds whatever the manifest."""
    schema = _defined(found)
    rules = [registry.find(rule).rule for rule in found.rules]
    lab = sorted({number for rule in rules for number in rule.lab})
    return {
        "field": name,
        "meaning": meaning(found),
        "values": list(_values(schema)),
        "witnesses": {
            "declared": "the block manifest",
            "stored": "; ".join(filter(None, (found.stored, "config.json, where the manifest binds the field to it"))),
            **{w: said for w in ("executed", "measured") if (said := getattr(found, w))},
        },
        "rules": [{"code": rule.code, "name": rule.name, "severity": rule.severity} for rule in rules],
        "sources": [*map(citations.section, found.sections), *map(citations.lab, lab)],
    }


def meaning(found: ContractField) -> str:
    """What a field is, in the words of the schema where it has them."""
    return found.meaning or _defined(found).get("description", "")


def _defined(found: ContractField) -> dict[str, Any]:
    """The field's place in the schema of block manifests."""
    if found.defined is None:
        return {}
    part, name = found.defined
    schema = resources.schema("block_manifest")
    return (schema["$defs"][part] if part else schema)["properties"][name]


def _values(schema: dict[str, Any]) -> Iterator[str]:
    """The words that the schema allows, wherever it lists them."""
    yield from (v for v in schema.get("enum", ()) if isinstance(v, str))
    for choice in ("anyOf", "oneOf"):
        for one in schema.get(choice, ()):
            yield from _values(one)


def _of_manifest(name: str, manifest: str) -> dict[str, Any]:
    """What a manifest declares under that name under an empty config.json: of bound values, the class default."""
    from blockaudit.manifest.bind import bind
    from blockaudit.manifest.load import load

    loaded = load(manifest)
    fields = bind(loaded.manifest, {}).fields
    named = [f for f in fields if f == name] or [f for f in fields if f.endswith(f".{name}")]
    if not named:
        from difflib import get_close_matches

        near = get_close_matches(name, list(fields), 1)
        raise RequestError(f"{manifest}: declares no field {name!r}" + (f"; did you mean {near[0]}?" if near else ""))
    # The formula of a norm is its family's: an epsilon is read in it.
    owners = dict.fromkeys(f"{f.rpartition('.')[0]}.family" for f in named)
    families = [f for f in owners if f in fields and f not in named]
    return {
        "id": loaded.id,
        "source": loaded.manifest.source,
        "evidence_label": loaded.manifest.evidence_label,
        "fields": [
            {"field": f, "value": fields[f].value, "read": fields[f].bytes_read, "default": bool(fields[f].implied)}
            for f in (*named, *families)
        ],
    }


def _text(data: dict[str, Any], width: int) -> list[Line]:
    lines: list[Line] = [((escape(data["field"]), "head"), ("  (field of the contract)", "dim"))]
    lines += wrapped("", escape(data["meaning"]), width)
    if data["values"]:
        lines += wrapped("", f"One of {', '.join(data['values'])}.", width)
    lines += [(), (("Who can speak to it", "head"),)]
    for witness, said in data["witnesses"].items():
        lines += wrapped(f"  {witness:<10}", f"{said} ({_ASKED[witness]})" if witness in _ASKED else said, width)
    if "manifest" in data:
        lines += _manifest(data["manifest"], width)
    lines += [(), (("Which rules judge it", "head"),)]
    judges = [f"{rule['code']} {rule['name']}" for rule in data["rules"]]
    lines += wrapped("  ", ", ".join(judges) or "none: it is shown, and compared where two witnesses speak", width)
    return lines + sources(data["sources"], width)


def _manifest(said: dict[str, Any], width: int) -> list[Line]:
    lines: list[Line] = [(), ((f"What {escape(said['id'])} says", "head"),)]
    for row in said["fields"]:
        default = "class default " if row["default"] else ""
        said_of = f"{escape(row['field'])}: {default}{value(row['value'])}  ({escape(row['read'])})"
        lines += wrapped("  ", said_of, width)
    label = escape(said["evidence_label"] or "no label")
    return lines + wrapped("  ", f"source: {escape(said['source'] or 'none given')} ({label})", width)


def sources(cited: Sequence[str], width: int) -> list[Line]:
    """The section that says where it comes from; nothing where nothing is known."""
    if not cited:
        return []
    specified = any(one.startswith("specification ") for one in cited)
    where: Line = (("Where it comes from", "head"), *([(f"  ({citations.SPECIFICATION})", "dim")] if specified else []))
    lines: list[Line] = [(), where]
    return lines + [line for one in cited for line in wrapped("  ", escape(one), width)]
