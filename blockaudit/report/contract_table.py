"""The contract as a table: one row per field, one column per witness, grouped by stack and branch."""

from __future__ import annotations

from collections.abc import Sequence

from blockaudit.records.contract import WITNESSES, ContractRow, Witness
from blockaudit.records.layers import spoken
from blockaudit.report.escape import escape
from blockaudit.report.layout import Line, Span, cut, table
from blockaudit.report.words import value

# Always shown; the other witnesses get a column when they speak to any field.
_ALWAYS: tuple[Witness, ...] = ("declared", "stored")
# One long value (a branch order) must not push the columns of all the others apart.
_NARROWEST, _WIDEST = 12, 26


def contract_table(rows: Sequence[ContractRow], width: int) -> list[Line]:
    """The whole table with its heading, or nothing where there is no contract."""
    if not rows:
        return []
    witnesses: list[Witness] = [w for w in WITNESSES if w in _ALWAYS or any(w in row.statements for row in rows)]
    body = [cells for group, members in _groups(rows).items() for cells in _group(group, members, witnesses)]
    limit = _value_width(body, len(witnesses), width)
    header: list[Span] = [("Contract", "head"), *((w, "dim") for w in witnesses), ("", "")]
    return [(), *table([header, *([_cut(row, limit) for row in body])])]


def _groups(rows: Sequence[ContractRow]) -> dict[str, list[ContractRow]]:
    """Rows by `stack.branch` (`decoder.self_attention`), in the order in which the groups first appear."""
    groups: dict[str, list[ContractRow]] = {}
    for row in rows:
        groups.setdefault(".".join(row.field.split(".")[:-1][:2]), []).append(row)
    return groups


def _group(name: str, rows: Sequence[ContractRow], witnesses: Sequence[Witness]) -> list[list[Span]]:
    head: list[list[Span]] = [[(f"  {escape(name)}", "head"), *(("", "") for _ in witnesses), ("", "")]] if name else []
    return head + [_row(row, row.field[len(name) :].lstrip("."), witnesses) for row in rows]


def _row(row: ContractRow, name: str, witnesses: Sequence[Witness]) -> list[Span]:
    mark, style = _mark(row)
    shade = style if row.agrees is False else "" if row.agrees else "dim"
    return [(f"    {escape(name)}", shade), *((_said(row, w), shade) for w in witnesses), (mark, style)]


def _said(row: ContractRow, witness: Witness) -> str:
    """A witness's value, with the layers that it speaks of where they are not all."""
    statement = row.statements.get(witness)
    layers = spoken(statement.layers) if statement is not None else ""
    return f"{value(row.value(witness))} ({layers})" if layers else value(row.value(witness))


def _mark(row: ContractRow) -> Span:
    if row.agrees is not None:
        return ("agrees", "good") if row.agrees else ("DISAGREES", "bad")
    return ("one witness", "dim") if row.known else ("unknown", "warn" if row.required else "dim")


def _value_width(body: Sequence[Sequence[Span]], columns: int, width: int) -> int:
    """Columns left for one value when field names and marks have theirs."""
    names = max(len(row[0][0]) for row in body)
    return min(max((width - names - len("one witness")) // columns - 2, _NARROWEST), _WIDEST)


def _cut(row: Sequence[Span], limit: int) -> list[Span]:
    return [row[0], *((cut(text, limit), style) for text, style in row[1:-1]), row[-1]]
