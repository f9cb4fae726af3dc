"""Manifests in plain text, for a terminal and for a diff."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from blockaudit.manifest.diff import Comparison, Difference
from blockaudit.report.escape import escape


def listed(rows: Sequence[dict[str, Any]]) -> str:
    """The library, a line each."""
    table = [(r["id"], ", ".join(r["model_types"]), r["equation"], r["evidence_label"]) for r in rows]
    return _table(("id", "model types", "block", "evidence"), table)


def shown(it: dict[str, Any], drawing: str) -> str:
    """One manifest on a page, with the drawing of its wiring."""
    parts = [_identity(it)]
    parts += [_stack(s) for s in it["stacks"]]
    parts.append("Wiring, read downwards\n" + "".join(f"  {line}".rstrip() + "\n" for line in drawing.splitlines()))
    if it["norms"]:
        columns = ("site", "family", "epsilon", "epsilon from", "offset", "bias", "work dtype", "cast")
        keys = ("site", "family", "epsilon", "epsilon_source", "scale_offset", "bias", "work_dtype", "cast_order")
        parts.append("Norms\n" + _table(columns, [tuple(_word(n[k]) for k in keys) for n in it["norms"]], "  "))
    if it["dims"]:
        rows = [(name, _word(value)) for name, value in it["dims"].items()]
        parts.append("Dimensions, and the config keys that give them\n" + _table(None, rows, "  "))
    if it["keys"]:
        parts.append("Keys\n" + _table(None, [_key(k) for k in it["keys"]], "  "))
    if it["ties"]:
        parts.append("Ties\n" + _table(None, [(t["key"], "->", t["tied_to"], t["when"]) for t in it["ties"]], "  "))
    return "\n".join(parts)


def checked(rows: Sequence[dict[str, Any]]) -> str:
    """Findings, a line each; a manifest without any says so."""
    lines: list[str] = []
    for row in rows:
        lines += [f"{row['manifest']}: {f}" for f in row["findings"]] or [f"{row['manifest']}: ok ({row['kind']})"]
    return "".join(f"{escape(line)}\n" for line in lines)


def compared(a: str, b: str, found: Comparison) -> str:
    """Two manifests, difference by difference."""
    parts = [_verdict(a, b, found)]
    for title, differences in (
        ("Contract", found.contract), ("Dimensions", found.dims), ("Keys", found.keys)
    ):  # fmt: skip
        if differences:
            rows = [(d.field, _word(d.a), _word(d.b), d.changes) for d in differences]
            parts.append(f"{title}\n" + _table(("", escape(a), escape(b), "changes"), rows, "  "))
    return "\n".join(parts)


def compared_data(a: str, b: str, found: Comparison) -> dict[str, Any]:
    """The same as data."""

    def rows(differences: Iterable[Difference]) -> list[dict[str, Any]]:
        return [{"field": d.field, "a": d.a, "b": d.b, "changes": d.changes} for d in differences]

    return {
        "a": a,
        "b": b,
        "same_function": found.same_function,
        "contract": rows(found.contract),
        "dims": rows(found.dims),
        "keys": rows(found.keys),
    }


def _verdict(a: str, b: str, found: Comparison) -> str:
    count, training = found.counted("function"), found.counted("training")
    said = "the same function" if found.same_function else f"another function: {count} fields change it"
    if training:
        said += f"; {training} change training alone"
    return escape(f"{a} and {b}: {said}") + "\n"


def _identity(it: dict[str, Any]) -> str:
    rows = [
        ("architecture", it["architecture_id"]),
        ("manifest", f"{it['id']}  sha256 {it['sha256']}"),
        ("evidence", f"{it['evidence_label']} ({it['witness']})" + (f": {it['source']}" if it["source"] else "")),
        ("state", f"[{', '.join(it['state_layout'])}]"),
        ("model types", ", ".join(it["model_types"]) or "-"),
        ("base class", f"{it['base_class'] or '-'} (prefix {it['base_prefix']!r})"),
    ]
    rows += [("class", f"{name} ({', '.join(parts) or 'no part'})") for name, parts in it["classes"].items()]
    return _table(None, rows)


def _stack(stack: dict[str, Any]) -> str:
    lines = [f"{stack['name']}: {_word(stack['layers'])} layers"]
    if stack["stored_layers"] is not None:
        lines[0] += f", {_word(stack['stored_layers'])} stored"
    for kind, equation in stack["equations"].items():
        if kind:
            lines.append(f"  [{kind}: {stack['layer_kinds'][kind]}]")
        lines += [f"  {line}" for line in equation]
    lines += [f"  {line}" for line in stack["around"]]
    lines += [f"  ({condition})" for condition in stack["conditions"]]
    lines.append(f"  {'topology:':<26} {stack['topology'] or 'no name in the registry'}")
    for name in ("shortcut_crosses_norm", "branch_output_normalised", "stack_final_norm"):
        said = "yes" if stack[name] else "no"
        if name == "branch_output_normalised" and stack["residual_sum_normalised"]:
            said += ", the residual sum is"
        lines.append(f"  {name.replace('_', ' ') + ':':<26} {said}")
    counts = [f"{count} ({kind})" if kind else str(count) for kind, count in stack["norms_per_layer"].items()]
    lines.append(f"  {'norms in a layer:':<26} {', '.join(counts) or '-'}")
    return "".join(f"{escape(line)}\n" for line in lines)


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    flags = [n for n in ("optional", "derived", "part") if row.get(n)] + ([row["layout"]] if "layout" in row else [])
    return row["key"], f"[{', '.join(row['shape'])}]", row["owner"], ", ".join(flags)


def _word(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(_word, value))}]" if isinstance(value, list | tuple) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _table(head: Sequence[str] | None, rows: Sequence[Sequence[str]], indent: str = "") -> str:
    lines = [[escape(cell) for cell in row] for row in ([head] if head else []) + list(rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        indent + "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )
