"""split and concat: one tensor cut along an axis, or several joined; each other's inverse."""

from __future__ import annotations

from typing import Any

from blockaudit.migrate.ops import heads
from blockaudit.migrate.ops.base import Handler, OperationError, axis_of, few, number, only, sized
from blockaudit.migrate.ops.spreads import collapsed, places, spread
from blockaudit.records.migration import Row, State, TensorType
from blockaudit.records.operations import Concat, Operation, Split


def _parts(op: Split, total: int) -> list[int]:
    """Sizes of the parts along `dim`. Raises OperationError."""
    if op.layout is not None:
        return list(heads.rows(op, total))
    if op.sizes is not None:
        sizes = [number(s, "sizes") for s in op.sizes]
        if sum(sizes) != total:
            raise OperationError(f"parts of {sizes} are {sum(sizes)} together, and there are {total}")
        return sizes
    count = few(number(op.count, "the number of parts"))
    if not count or total % count:
        raise OperationError(f"cuts {total} into {count} equal parts")
    return [total // count] * count


def _split_types(op: Split, state: State[TensorType]) -> State[TensorType]:
    if op.axis is not None:
        parted = [[_cut_type(op, t) for t in row.values] for row in state]
        return spread(op.axis, state, parted, number(op.count, "count"))
    return tuple(Row(row.at, tuple(_cut_type(op, only(row, "split")))) for row in state)


def _cut_type(op: Split, given: TensorType) -> list[TensorType]:
    axis = axis_of(op.dim, given.shape)
    return [sized(given, axis, n) for n in _parts(op, given.shape[axis])]


def _split(op: Split, state: State[Any]) -> State[Any]:
    if op.axis is not None:
        parted = [[_cut(op, t) for t in row.values] for row in state]
        return spread(op.axis, state, parted, number(op.count, "count"))
    return tuple(Row(row.at, tuple(_cut(op, only(row, "split")))) for row in state)


def _cut(op: Split, given: Any) -> list[Any]:
    return list(heads.cut(op, given) if op.layout is not None else given.split(_parts(op, given.shape[op.dim]), op.dim))


def _unsplit(op: Split, before: State[TensorType]) -> Operation:
    sizes: list[int | str] | None = None
    if op.layout is None and op.axis is None:
        first = before[0].values[0]
        sizes = [*_parts(op, first.shape[axis_of(op.dim, first.shape)])]
    return Concat(
        dim=op.dim, layout=op.layout, heads=op.heads, kv_heads=op.kv_heads, sizes=sizes, axis=op.axis, count=op.count
    )


def _concat_types(op: Concat, state: State[TensorType]) -> State[TensorType]:
    if op.axis is not None:
        return collapsed(op.axis, state, lambda values: _join_types(op, values))
    return tuple(Row(row.at, (_join_types(op, row.values),)) for row in state)


def _join_types(op: Concat, values: tuple[TensorType, ...]) -> TensorType:
    first = values[0]
    axis = axis_of(op.dim, first.shape)
    if any(len(v.shape) != len(first.shape) or sized(v, axis, 0) != sized(first, axis, 0) for v in values):
        shown = ", ".join(f"{v.dtype} {list(v.shape)}" for v in values)
        raise OperationError(f"joins along axis {axis} what is alike in every other, and has {shown}")
    total = sum(v.shape[axis] for v in values)
    if op.layout is not None:
        if len(values) != 3:
            raise OperationError(f"layout {op.layout} joins q, k and v, and there are {len(values)} tensors")
        wanted, found = list(heads.rows(op, total)), [v.shape[axis] for v in values]
        if wanted != found:
            raise OperationError(f"q, k and v of these heads have {wanted} rows, and there are {found}")
    if op.sizes is not None and [number(s, "sizes") for s in op.sizes] != [v.shape[axis] for v in values]:
        raise OperationError(f"joins parts of {op.sizes}, and they are {[v.shape[axis] for v in values]}")
    return sized(first, axis, total)


def _concat(op: Concat, state: State[Any]) -> State[Any]:
    import torch

    def join(values: tuple[Any, ...]) -> Any:
        return heads.join(op, values) if op.layout is not None else torch.cat(values, op.dim)

    if op.axis is not None:
        return collapsed(op.axis, state, join)
    return tuple(Row(row.at, (join(row.values),)) for row in state)


def _unconcat(op: Concat, before: State[TensorType]) -> Operation:
    if op.axis is not None:
        return Split(dim=op.dim, axis=op.axis, count=len(places(op.axis, before)))
    if op.layout is not None:
        return Split(dim=op.dim, layout=op.layout, heads=op.heads, kv_heads=op.kv_heads)
    row = before[0].values
    return Split(dim=op.dim, sizes=[t.shape[axis_of(op.dim, t.shape)] for t in row])


def _split_back(op: Split) -> Operation:
    return Concat(dim=op.dim, layout=op.layout, heads=op.heads, kv_heads=op.kv_heads, sizes=op.sizes, axis=op.axis)


def _concat_back(op: Concat) -> Operation | None:
    """Over an axis, nothing but the source says how many parts there were."""
    if op.axis is not None and op.count is None:
        return None
    return Split(
        dim=op.dim, layout=op.layout, heads=op.heads, kv_heads=op.kv_heads, sizes=op.sizes, axis=op.axis, count=op.count
    )


HANDLERS: dict[type[Any], Handler] = {
    Split: Handler(_split_types, _split, _unsplit, _split_back),
    Concat: Handler(_concat_types, _concat, _unconcat, _concat_back),
}
