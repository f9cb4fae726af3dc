"""Migration maps in plain text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from blockaudit.records.migration import MigrationMap
from blockaudit.report.escape import escape


def listed(rows: Sequence[dict[str, Any]]) -> str:
    """The library, a line each."""
    table = [
        ("id", "from", "to", "rules"),
        *((r["id"], r["source"] or "-", r["target"], str(r["rules"])) for r in rows),
    ]
    widths = [max(len(row[n]) for row in table) for n in range(4)]
    return "".join(
        "  ".join(escape(c).ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() + "\n" for row in table
    )


def shown(it: dict[str, Any]) -> str:
    """One map on a page."""
    map_ = it["map"]
    lines = [f"{it['id']}: {map_.get('source') or 'any source'} -> {map_['target']}  (sha256 {it['sha256'][:16]})"]
    if map_.get("evidence"):
        lines.append(map_["evidence"])
    lines.append("")
    for number, rule in enumerate(map_.get("rules", [])):
        lines.append(f"{number:3}  {_names(rule['from'])}")
        lines += [f"     {_operation(op)}" for op in rule.get("ops", [])]
        lines.append(f"     -> {_names(rule['to'])}")
    lines += _section(
        "config", [f"{a} -> {'(dropped)' if b is None else b}" for a, b in map_.get("config", {}).items()]
    )
    lines += _section("supplied", [f"{k} = {json.dumps(v)}" for k, v in map_.get("supply", {}).items()])
    lines += _section("aliases", [f"{a} = {b}" for a, b in map_.get("alias", [])])
    lines += _section("dropped", [f"{d['key']}: {d['why']}" for d in map_.get("drop", [])])
    lines += _section("initialised", [f"{i['key']} = {i['value']}: {i['why']}" for i in map_.get("init", [])])
    return "".join(f"{escape(line)}\n" for line in lines)


def written(map_: MigrationMap) -> str:
    """A map as a file: defaults left out, the same bytes every time."""
    return msgspec.json.format(msgspec.json.encode(map_), indent=1).decode() + "\n"


def _names(keys: str | list[str]) -> str:
    return keys if isinstance(keys, str) else ", ".join(keys)


def _operation(op: dict[str, Any]) -> str:
    words = ", ".join(f"{k} {json.dumps(v) if not isinstance(v, str) else v}" for k, v in op.items() if k != "op")
    return f"{op['op']} ({words})" if words else str(op["op"])


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", title, *(f"  {line}" for line in lines)] if lines else []
