"""The contract as a table of a page: groups of rows, each with what every witness says and how they compare."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from blockaudit.records.contract import WITNESSES, ContractRow, Witness
from blockaudit.records.layers import spoken
from blockaudit.report.words import value

# Rows of one page: a manifest has a hundred or two, and only a hostile one has more.
_ROWS = 600
# Always shown; the other witnesses have a column where they speak to any field.
_ALWAYS: tuple[Witness, ...] = ("declared", "stored")
# How rows compare, most telling first, in the words of the legend.
STATES = {"disagree": "disagree", "unknown": "unknown", "agree": "agree", "one": "one witness"}


class Said(msgspec.Struct, frozen=True):
    """What one witness says of one field, and what it read; `silent` where it says nothing."""

    text: str = "-"
    evidence: str = ""
    silent: bool = True


class Row(msgspec.Struct, frozen=True):
    """One field; `state` is a key of STATES."""

    name: str
    field: str
    state: str
    said: tuple[Said, ...]


class Contract(msgspec.Struct, frozen=True):
    """The table: (group, rows) in order, how many rows there are of each state, how many are not shown."""

    witnesses: tuple[str, ...]
    groups: tuple[tuple[str, tuple[Row, ...]], ...]
    counts: dict[str, int]
    cut: int


def contract(rows: Sequence[ContractRow]) -> Contract:
    """The table of all rows; of more than anybody reads, the disagreements and the first."""
    witnesses: tuple[Witness, ...] = tuple(
        w for w in WITNESSES if w in _ALWAYS or any(w in row.statements for row in rows)
    )
    shown = rows
    if len(rows) > _ROWS:
        odd = [row for row in rows if row.agrees is False][:_ROWS]
        shown = odd + [row for row in rows if row.agrees is not False][: _ROWS - len(odd)]
    groups: dict[str, list[Row]] = {}
    for row in shown:
        group = ".".join(row.field.split(".")[:-1][:2])
        groups.setdefault(group, []).append(_row(row, group, witnesses))
    counts = dict.fromkeys(STATES, 0)
    for row in rows:
        counts[_state(row)] += 1
    return Contract(
        witnesses, tuple((group, tuple(found)) for group, found in groups.items()), counts, len(rows) - len(shown)
    )


def _row(row: ContractRow, group: str, witnesses: Sequence[Witness]) -> Row:
    name = row.field[len(group) :].lstrip(".")
    return Row(name, row.field, _state(row), tuple(_said(row, witness) for witness in witnesses))


def _said(row: ContractRow, witness: Witness) -> Said:
    statement = row.statements.get(witness)
    if statement is None:
        return Said()
    layers = f" ({spoken(statement.layers)})" if statement.layers else ""
    return Said(value(statement.value) + layers, statement.evidence, silent=False)


def _state(row: ContractRow) -> str:
    if row.agrees is not None:
        return "agree" if row.agrees else "disagree"
    return "one" if row.known else "unknown"
