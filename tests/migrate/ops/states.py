"""States to act on: rows of tensors whose numbers are all different, and their types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from blockaudit.migrate import ops
from blockaudit.records.migration import Row, State, TensorType
from blockaudit.records.operations import Operation

NAMES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}


def numbered(*shape: int, start: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """start, start + 1, ... in this shape."""
    count = int(torch.Size(shape).numel())
    return torch.arange(start, start + count).reshape(shape).to(dtype)


def row(*tensors: torch.Tensor) -> State[torch.Tensor]:
    """One row, no open axis."""
    return (Row((), tensors),)


def over(axis: str, *rows: Sequence[torch.Tensor]) -> State[torch.Tensor]:
    """One row for each place of an axis."""
    return tuple(Row(((axis, n),), tuple(values)) for n, values in enumerate(rows))


def types(state: State[torch.Tensor]) -> State[TensorType]:
    """What the headers would say of a state."""
    return tuple(Row(r.at, tuple(TensorType(NAMES[t.dtype], tuple(t.shape)) for t in r.values)) for r in state)


def after(state: State[torch.Tensor], *operations: Operation) -> State[torch.Tensor]:
    """The state after the operations, of the types that were foretold."""
    found = ops.apply(operations, state)
    assert types(found) == ops.types_after(operations, types(state))[-1]
    return found


def only(state: State[torch.Tensor]) -> Any:
    """The numbers of the one tensor, as lists."""
    ((tensor,),) = (r.values for r in state)
    return tensor.tolist()


def lists(state: State[torch.Tensor]) -> list[list[Any]]:
    """The numbers of every tensor, row by row."""
    return [[t.tolist() for t in r.values] for r in state]


def same(one: State[torch.Tensor], two: State[torch.Tensor]) -> bool:
    """Whether two states have the same places, dtypes, shapes and numbers."""
    return types(one) == types(two) and all(
        torch.equal(a, b) for r, s in zip(one, two, strict=True) for a, b in zip(r.values, s.values, strict=True)
    )
