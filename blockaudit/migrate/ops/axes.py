"""transpose, slice, pad: one tensor, its axes swapped, cut or lengthened."""

from __future__ import annotations

from typing import Any

from blockaudit.migrate.ops.base import Handler, OperationError, axis_of, each, number, sized
from blockaudit.records.migration import State, TensorType
from blockaudit.records.operations import Operation, Pad, Slice, Transpose


def _transposed(op: Transpose, state: State[TensorType]) -> State[TensorType]:
    def act(given: TensorType) -> TensorType:
        if len(given.shape) < 2:
            raise OperationError(f"swaps two axes, and the shape is {list(given.shape)}")
        a, b = (axis_of(d, given.shape) for d in op.dims)
        if a == b:
            raise OperationError(f"swaps two axes, and {list(op.dims)} are one")
        shape = list(given.shape)
        shape[a], shape[b] = shape[b], shape[a]
        return TensorType(given.dtype, tuple(shape))

    return each(op, state, act)


def _transpose(op: Transpose, state: State[Any]) -> State[Any]:
    return each(op, state, lambda t: t.transpose(*op.dims))


def _untranspose(op: Transpose, before: State[TensorType]) -> Operation:
    del before
    return op


def _sliced(op: Slice, state: State[TensorType]) -> State[TensorType]:
    start, stop = number(op.start, "start"), number(op.stop, "stop")

    def act(given: TensorType) -> TensorType:
        axis = axis_of(op.dim, given.shape)
        if not start < stop <= given.shape[axis]:
            raise OperationError(f"keeps elements {start} to {stop} of axis {axis}, which has {given.shape[axis]}")
        return sized(given, axis, stop - start)

    return each(op, state, act)


def _slice(op: Slice, state: State[Any]) -> State[Any]:
    start = number(op.start, "start")
    return each(op, state, lambda t: t.narrow(op.dim, start, number(op.stop, "stop") - start))


def _unslice(op: Slice, before: State[TensorType]) -> Operation | None:
    """Only a slice that keeps everything loses nothing."""
    return op if _sliced(op, before) == before else None


def _padded(op: Pad, state: State[TensorType]) -> State[TensorType]:
    size = number(op.size, "size")

    def act(given: TensorType) -> TensorType:
        axis = axis_of(op.dim, given.shape)
        if size < given.shape[axis]:
            raise OperationError(f"lengthens axis {axis} to {size}, and it has {given.shape[axis]} already")
        return sized(given, axis, size)

    return each(op, state, act)


def _pad(op: Pad, state: State[Any]) -> State[Any]:
    def act(given: Any) -> Any:
        import torch

        shape = list(given.shape)
        shape[op.dim] = number(op.size, "size") - shape[op.dim]
        return torch.cat([given, given.new_full(shape, op.value)], op.dim)

    return each(op, state, act)


def _unpad(op: Pad, before: State[TensorType]) -> Operation | None:
    sizes = {t.shape[axis_of(op.dim, t.shape)] for row in before for t in row.values}
    return Slice(stop=sizes.pop(), dim=op.dim, why="what was padded", at=op.at) if len(sizes) == 1 else None


def _back(op: Transpose) -> Operation:
    return op


def _pad_back(op: Pad) -> None:
    """Nothing says how long it was."""
    del op


def _slice_back(op: Slice) -> Operation | None:
    return Pad(size=op.size, dim=op.dim, why=op.why, at=op.at) if op.start == 0 and op.size is not None else None


HANDLERS: dict[type[Any], Handler] = {
    Transpose: Handler(_transposed, _transpose, _untranspose, _back),
    Slice: Handler(_sliced, _slice, _unslice, _slice_back),
    Pad: Handler(_padded, _pad, _unpad, _pad_back),
}
