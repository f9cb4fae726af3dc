"""What each operation of a map does: to types (dtype and shape), to tensors, and which operation undoes it.

One module for each kind; `TABLE` is the one place where an operation of `records.operations` finds its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockaudit.migrate.ops import axes, joins, numbers, rope, spreads
from blockaudit.migrate.ops.base import Handler, OperationError
from blockaudit.records.migration import State, TensorType
from blockaudit.records.operations import Operation

TABLE: dict[type[Any], Handler] = {
    **axes.HANDLERS,
    **joins.HANDLERS,
    **numbers.HANDLERS,
    **rope.HANDLERS,
    **spreads.HANDLERS,
}


def handler(op: Operation) -> Handler:
    """Who knows this operation."""
    return TABLE[type(op)]


def name(op: Operation) -> str:
    """The word of the contract for an operation (`permute_rope`)."""
    return str(type(op).__struct_config__.tag)


def types_after(ops: Sequence[Operation], state: State[TensorType]) -> list[State[TensorType]]:
    """The types before the first operation and after each. Raises OperationError, which names the operation."""
    found = [state]
    for number, op in enumerate(ops, 1):
        try:
            found.append(handler(op).types(op, found[-1]))
        except OperationError as error:
            raise OperationError(f"operation {number} ({name(op)}): {error}") from error
    return found


def apply(ops: Sequence[Operation], state: State[Any]) -> State[Any]:
    """The tensors after all operations (torch). Types were checked before: see `types_after`."""
    for op in ops:
        state = handler(op).apply(op, state)
    return state


def inverse(ops: Sequence[Operation], types: Sequence[State[TensorType]]) -> list[Operation] | Operation:
    """The operations that undo `ops`, in order; where one has no inverse, that one. `types` as of `types_after`."""
    undone: list[Operation] = []
    for op, before in zip(reversed(ops), reversed(types[:-1]), strict=True):
        back = handler(op).inverse(op, before)
        if back is None:
            return op
        undone.append(back)
    return undone
