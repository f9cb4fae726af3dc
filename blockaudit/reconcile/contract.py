"""The contract table: testimonies compared field by field, knowing nothing of where they came from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from blockaudit.records.contract import ContractRow, Statement, Testimony, Witness

_KIND = re.compile(r"^(\w+\.\w+)\[([\w|]+)\]\.(.+)$")

# What the levels of this release can decide, by the last part of the field. Everything else waits for execution.
_REQUIRED = (
    "present", "bias", "epsilon", "embedding.scale", "logits.scale", "logits.softcap", "shortcut_scale",
    "attention_branch_scale", "cross_attention_branch_scale", "mlp_branch_scale", "layers",
)  # fmt: skip
# Norm families that have no epsilon to know.
_WITHOUT_EPSILON = ("dyt", "none")


# What execution alone decides: at the graph level the executed witness must speak to these.
_EXECUTED = (
    ".family", ".epsilon", ".reduction_axes", ".scale_offset", ".cast_order", ".placement", ".branch_order",
    ".parallel", ".shortcut_scale", "attention_branch_scale", ".mlp_branch_scale", ".embedding.scale", "logits.scale",
    "final_norm.present",
)  # fmt: skip


def reconcile(testimonies: Iterable[Testimony], *, graph: bool = False) -> tuple[ContractRow, ...]:
    """One row per field that any witness names, in the order in which the first witness names it.

    With `graph`, fields that execution decides are required of the executed witness.
    """
    testimonies = tuple(testimonies)
    names = dict.fromkeys(n for t in testimonies for n in t.statements)
    rows = [_row(n, testimonies, graph) for n in names]
    return tuple(_merged(rows))


def _row(name: str, testimonies: tuple[Testimony, ...], graph: bool) -> ContractRow:
    said: dict[Witness, Statement] = {t.witness: t.statements[name] for t in testimonies if name in t.statements}
    known: dict[Witness, Statement] = {w: s for w, s in said.items() if s.known}
    required = _required(name, testimonies)
    if graph and name.endswith(_EXECUTED) and (required or not name.endswith(".epsilon")):
        return ContractRow(name, known, _agree(list(known.values())), True, "executed")
    return ContractRow(name, known, _agree(list(known.values())), required)


def _agree(statements: list[Statement]) -> bool | None:
    """True or False where two statements were read from different bytes; None where there is one witness at most."""
    if len({s.bytes_read for s in statements}) < 2:
        return None
    first = statements[0]
    return all(same(first.value, s.value) for s in statements[1:])


def same(a: Any, b: Any) -> bool:
    """Equality of field values: numbers by value (1e-6 is 1e-06), everything else exactly."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b or abs(a - b) <= 1e-6 * max(abs(a), abs(b))
    return a == b


def _required(name: str, testimonies: tuple[Testimony, ...]) -> bool:
    if name.startswith(("dims.", "tie.", "quantization.")):
        return True
    if name.endswith(".epsilon"):
        family = f"{name.removesuffix('epsilon')}family"
        said = [t.statements[family].value for t in testimonies if family in t.statements]
        return not any(f in _WITHOUT_EPSILON for f in said)
    return name.endswith(_REQUIRED) or ".bias." in name


def _merged(rows: list[ContractRow]) -> Iterable[ContractRow]:
    """Rows of one branch by layer kind (`decoder.mlp[moe].…`) as one where every kind says the same."""
    parts = [_KIND.match(row.field) for row in rows]
    kinds: dict[str, set[str]] = {}
    groups: dict[str, list[ContractRow]] = {}
    for row, hit in zip(rows, parts, strict=True):
        if hit:
            kinds.setdefault(hit[1], set()).add(hit[2])
            groups.setdefault(f"{hit[1]}.{hit[3]}", []).append(row)
    done: set[str] = set()
    for row, hit in zip(rows, parts, strict=True):
        name = f"{hit[1]}.{hit[3]}" if hit else row.field
        group = groups.get(name, [])
        if hit is None or len(group) < len(kinds[hit[1]]) or not all(_alike(group[0], r) for r in group[1:]):
            yield row
        elif name not in done:
            done.add(name)
            yield ContractRow(name, row.statements, row.agrees, row.required, row.wants)


def _alike(a: ContractRow, b: ContractRow) -> bool:
    return (
        a.agrees == b.agrees
        and a.statements.keys() == b.statements.keys()
        and all(same(s.value, b.statements[w].value) for w, s in a.statements.items())
    )
