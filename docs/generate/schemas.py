"""docs/manifest-fields.md and docs/schemas.md: every field of the documents that people write and read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from blockaudit import resources
from docs.generate.text import NOTICE, code, prose, table

MANIFESTS = ("block_manifest", "tensor_manifest", "checkpoint_manifest", "runtime_manifest", "training_manifest")
DOCUMENTS = ("report", "config", "baseline", "tolerance_policy", "migration_map")
_PLURAL = {"string": "texts", "integer": "whole numbers", "number": "numbers", "object": "objects"}
_ONE = {"string": "text", "integer": "whole number", "boolean": "true/false", "array": "list", "null": "null"}


def manifests() -> str:
    """Fields of the manifests."""
    return _page(
        "Fields of the manifests",
        "[The block manifest](manifest.md) shows how one is written; this page lists all that may stand in it.",
        MANIFESTS,
    )


def documents() -> str:
    """Fields of reports, and of the files that decide how they come out."""
    return _page(
        "Reports and settings as data",
        "Of the JSON report, the config file, the baseline, the tolerance policy and the migration map. "
        "What they mean: [how to read a report](report.md), [findings to live with](findings.md), [maps](maps.md).",
        DOCUMENTS,
    )


def _page(title: str, said: str, names: tuple[str, ...]) -> str:
    lines = [f"# {title}", "", NOTICE.format(" from `schemas/`"), "", said, ""]
    lines += ["A field in **bold** is required."]
    for name in names:
        lines += _schema(name)
    return "\n".join(lines).rstrip() + "\n"


def _schema(name: str) -> Iterator[str]:
    schema, words = resources.schema(name), name.replace("_", " ")
    yield from ("", f"## {_capital(words)}", "", f"{prose(schema['description'])} (`schemas/{name}.schema.json`)", "")
    yield from _fields(schema, words)
    for key, inner in schema.get("$defs", {}).items():
        yield from ("", f"### {_heading(key, words)}", "")
        if "description" in inner:
            yield from (prose(inner["description"]), "")
        yield from _fields(inner, words) if inner.get("properties") else [f"{_capital(_value(inner, words))}."]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _heading(key: str, words: str) -> str:
    return f"{key.replace('_', ' ')} ({words})"


def _fields(schema: dict[str, Any], words: str) -> list[str]:
    required = schema.get("required", [])
    rows: list[list[str]] = []
    for name, field in schema["properties"].items():
        shown = f"**{code(name)}**" if name in required else code(name)
        field = _schema_of(field)
        rows.append([shown, _value(field, words), prose(field.get("description", ""))])
    return table(["field", "value", "meaning"], rows)


def _schema_of(node: Any) -> dict[str, Any]:
    """A schema as an object: `true` is the one that allows anything, and says nothing."""
    return {} if isinstance(node, bool) else node


def _value(schema: dict[str, Any], words: str) -> str:
    """What may stand there, in a few words."""
    if not schema:
        return "any"
    if "$ref" in schema:
        key = schema["$ref"].rpartition("/")[2]
        anchor = "".join(c for c in _heading(key, words).replace(" ", "-") if c.isalnum() or c in "-_")
        return f"[{key.replace('_', ' ')}](#{anchor})"
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return ", ".join(code(json.dumps(one).strip('"')) for one in schema["enum"])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_value(_schema_of(one), words) for one in schema[several]))
    return _typed(schema, words)


def _typed(schema: dict[str, Any], words: str) -> str:
    kinds: str | list[str] = schema.get("type", "any")
    if isinstance(kinds, list):
        return " or ".join(_ONE.get(kind, kind) for kind in kinds)
    if kinds == "array" and "items" in schema:
        items = _schema_of(schema["items"])
        plain = "" if "enum" in items else items.get("type", "")
        return f"list of {_PLURAL[plain]}" if plain in _PLURAL else f"list of {_value(items, words)}"
    if kinds == "object":
        return _mapping(schema, words)
    return _ONE.get(kinds, kinds)


def _mapping(schema: dict[str, Any], words: str) -> str:
    if schema.get("properties"):
        return "object of " + ", ".join(code(name) for name in schema["properties"])
    inner = _schema_of(schema.get("additionalProperties", True))
    return f"object, each value {_value(inner, words)}" if inner else "object"
