"""What every operation of a map can be asked, and the few helpers that they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from blockaudit.records.migration import Row, State, TensorType
from blockaudit.records.operations import Operation

T = TypeVar("T")
# More experts, ranks or parts of one tensor than this is no model, and a map that says so is refused before the work.
MAX_PARTS = 1024


class OperationError(Exception):
    """An operation cannot act on what it is given. The message says what it needs and what it has."""


@dataclass(frozen=True, slots=True)
class Handler:
    """`types`: dtypes and shapes after the operation; raises OperationError. `apply`: the same on torch tensors.

    `inverse`: the operation that undoes it on values of these types (those before it), or None where there is none.
    `backwards`: the operation that undoes it as far as its own words say, its symbols left as they are; or None.
    """

    types: Callable[[Any, State[TensorType]], State[TensorType]]
    apply: Callable[[Any, State[Any]], State[Any]]
    inverse: Callable[[Any, State[TensorType]], Operation | None]
    backwards: Callable[[Any], Operation | None]


def each(op: Any, state: State[T], act: Callable[[T], T]) -> State[T]:
    """`act` on the values of every row that `at` picks, the others as they are. Raises OperationError."""
    at = op.at
    picked = None if at is None else {at} if isinstance(at, int) else set(at)
    for row in state:
        if picked is not None and not picked <= set(range(len(row.values))):
            raise OperationError(f"at names value {max(picked)}, and there are {len(row.values)}, counted from 0")
    return tuple(
        Row(row.at, tuple(act(v) if picked is None or n in picked else v for n, v in enumerate(row.values)))
        for row in state
    )


def axis_of(dim: int, shape: tuple[int, ...], *, new: bool = False) -> int:
    """`dim` counted from the front. Raises OperationError where the tensor has no such axis."""
    rank = len(shape) + new
    if not -rank <= dim < rank:
        raise OperationError(f"needs axis {dim}, and the shape is {list(shape)}")
    return dim % rank


def number(value: Any, what: str) -> int:
    """A size whose symbols have been worked out. Raises OperationError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise OperationError(f"needs {what} as a whole number, and has {value!r}")
    return value


def sized(type_: TensorType, axis: int, size: int) -> TensorType:
    """The type with another size of one axis."""
    shape = type_.shape
    return TensorType(type_.dtype, (*shape[:axis], size, *shape[axis + 1 :]))


def few(count: int) -> int:
    """A number of parts. Raises OperationError where it is more than any model has."""
    if count > MAX_PARTS:
        raise OperationError(f"makes {count} parts, and at most {MAX_PARTS} are made of one tensor")
    return count


def only(row: Row[T], what: str) -> T:
    """The one value of a row. Raises OperationError."""
    if len(row.values) != 1:
        raise OperationError(f"{what} acts on one tensor, and there are {len(row.values)}")
    return row.values[0]
