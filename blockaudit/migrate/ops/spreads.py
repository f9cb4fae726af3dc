"""stack, unstack, replicated: what stands at every place of an axis (an expert, a rank) becomes one, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from blockaudit.migrate.ops.base import Handler, OperationError, axis_of, few, number, only
from blockaudit.records.migration import Row, State, TensorType
from blockaudit.records.operations import Operation, Replicated, Stack, Unstack

T = TypeVar("T")


def places(axis: str, state: State[Any]) -> list[int]:
    """The numbers that an open axis runs over, in order. Raises OperationError where it is not open."""
    found = {n for row in state for name, n in row.at if name == axis}
    if not found or any(axis not in dict(row.at) for row in state):
        raise OperationError(f"nothing runs over axis {axis}: no template of `from` has {{{axis}}}")
    return sorted(found)


def collapsed(axis: str, state: State[T], join: Callable[[tuple[T, ...]], T]) -> State[T]:
    """One row for all places of an axis, each value joined with those of its own place in the row."""
    places(axis, state)
    groups: dict[tuple[tuple[str, int], ...], list[Row[T]]] = {}
    for row in sorted(state, key=lambda r: dict(r.at)[axis]):
        groups.setdefault(tuple(p for p in row.at if p[0] != axis), []).append(row)
    return tuple(
        Row(at, tuple(join(values) for values in zip(*(r.values for r in rows), strict=True)))
        for at, rows in groups.items()
    )


def spread(axis: str, state: State[Any], parts: Sequence[Sequence[Sequence[T]]], count: int) -> State[T]:
    """One row for each of `count` places; `parts[row][value][place]`. Raises OperationError."""
    if any(len(values) != count for row in parts for values in row):
        raise OperationError(f"axis {axis} has {count} places, and there are {len(parts[0][0])} parts")
    return tuple(
        Row((*row.at, (axis, n)), tuple(values[n] for values in mine))
        for row, mine in zip(state, parts, strict=True)
        for n in range(count)
    )


def _alike(values: tuple[TensorType, ...]) -> TensorType:
    if any(v != values[0] for v in values):
        raise OperationError("lays tensors of one type together, and has " + ", ".join(map(str, values)))
    return values[0]


def _stacked(op: Stack, state: State[TensorType]) -> State[TensorType]:
    def join(values: tuple[TensorType, ...]) -> TensorType:
        first = _alike(values)
        axis = axis_of(op.dim, first.shape, new=True)
        return TensorType(first.dtype, (*first.shape[:axis], len(values), *first.shape[axis:]))

    return _joined(op, state, join)


def _joined(op: Stack, state: State[T], join: Callable[[tuple[T, ...]], T]) -> State[T]:
    if op.axis is not None:
        return collapsed(op.axis, state, join)
    return tuple(Row(row.at, (join(row.values),)) for row in state)


def _stack(op: Stack, state: State[Any]) -> State[Any]:
    import torch

    return _joined(op, state, lambda values: torch.stack(values, op.dim))


def _unstack_of_stack(op: Stack, before: State[TensorType]) -> Operation:
    count = len(before[0].values) if op.axis is None else len(places(op.axis, before))
    return Unstack(dim=op.dim, axis=op.axis, count=count)


def _unstacked(op: Unstack, state: State[TensorType]) -> State[TensorType]:
    def parts(given: TensorType) -> list[TensorType]:
        axis = axis_of(op.dim, given.shape)
        return [TensorType(given.dtype, (*given.shape[:axis], *given.shape[axis + 1 :]))] * few(given.shape[axis])

    return _taken_apart(op, state, parts)


def _taken_apart(op: Unstack, state: State[Any], parts: Callable[[Any], Sequence[T]]) -> State[T]:
    if op.axis is None:
        return tuple(Row(row.at, tuple(parts(only(row, "unstack")))) for row in state)
    found = [[parts(value) for value in row.values] for row in state]
    count = len(found[0][0]) if op.count is None else number(op.count, "count")
    return spread(op.axis, state, found, count)


def _unstack(op: Unstack, state: State[Any]) -> State[Any]:
    return _taken_apart(op, state, lambda given: given.unbind(op.dim))


def _stack_of_unstack(op: Unstack, before: State[TensorType]) -> Operation:
    del before
    return Stack(dim=op.dim, axis=op.axis)


def _one(op: Replicated, state: State[TensorType]) -> State[TensorType]:
    return collapsed(op.axis, state, _alike) if _open(op, state) else _copied(op, state)


def _open(op: Replicated, state: State[Any]) -> bool:
    """Whether there are copies to become one; else (the inverse) one becomes `count` copies."""
    return op.count is None or any(op.axis in dict(row.at) for row in state)


def _copied(op: Replicated, state: State[T]) -> State[T]:
    count = few(number(op.count, "count"))
    return spread(op.axis, state, [[[v] * count for v in row.values] for row in state], count)


def _same(op: Replicated, state: State[Any]) -> State[Any]:
    def join(values: tuple[Any, ...]) -> Any:
        import torch

        first = values[0].contiguous().view(torch.uint8)
        if not all(torch.equal(v.contiguous().view(torch.uint8), first) for v in values[1:]):
            raise OperationError(f"copies along axis {op.axis} hold other bytes: nothing says which is right")
        return values[0]

    return collapsed(op.axis, state, join) if _open(op, state) else _copied(op, state)


def _copies(op: Replicated, before: State[TensorType]) -> Operation:
    return Replicated(axis=op.axis, count=len(places(op.axis, before)) if _open(op, before) else None)


def _stack_back(op: Stack) -> Operation:
    return Unstack(dim=op.dim, axis=op.axis, count=op.count)


def _unstack_back(op: Unstack) -> Operation:
    return Stack(dim=op.dim, axis=op.axis)


def _replicated_back(op: Replicated) -> Operation | None:
    return op if op.count is not None else None


HANDLERS: dict[type[Any], Handler] = {
    Stack: Handler(_stacked, _stack, _unstack_of_stack, _stack_back),
    Unstack: Handler(_unstacked, _unstack, _stack_of_unstack, _unstack_back),
    Replicated: Handler(_one, _same, _copies, _replicated_back),
}
