"""Whether what was computed leads back to what it came from: bit by bit, a part at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from blockaudit.migrate import ops
from blockaudit.records.migration import State, Step, TensorType
from blockaudit.records.operations import Add, Cast, Fold, Operation, Scale, Slice

# An unsigned integer of each width in bytes that torch can compare: bits and not numbers, so that NaN equals itself.
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


class Difference(msgspec.Struct, frozen=True):
    """Where a round trip does not lead back: the tensor, the first element by its number, both values, how many."""

    rule: int
    tensor: str
    first: int
    before: float
    after: float
    count: int
    elements: int
    ops: tuple[str, ...]


class NotEqualError(Exception):
    """A proof failed: the conversion would lose something, and is rejected."""

    def __init__(self, found: Difference) -> None:
        super().__init__(found.tensor)
        self.found = found


class RefusedStepError(Exception):
    """An operation cannot act on the numbers that are there: copies that are to be one and differ."""

    def __init__(self, rule: int, tensors: tuple[str, ...], why: str) -> None:
        super().__init__(why)
        self.rule, self.tensors, self.why = rule, tensors, why


class Twins(msgspec.Struct, frozen=True):
    """Two source keys that the map takes for one tensor, and the first byte in which they are not."""

    key: str
    twin: str
    first: int


class NotTwinsError(Exception):
    """A tie that the map consumes is none in this checkpoint."""

    def __init__(self, found: Twins) -> None:
        super().__init__(found.key)
        self.found = found


def in_state(step: Step) -> State[TensorType]:
    """The types of the inputs of a step, in its rows."""
    return tuple(msgspec.structs.replace(r, values=tuple(step.in_types[k] for k in r.values)) for r in step.sources)  # pyright: ignore[reportReturnType]


def undoing(step: Step) -> list[Operation] | Operation:
    """The operations that undo a step; where one has no inverse, that one."""
    return ops.inverse(step.ops, ops.types_after(step.ops, in_state(step)))


def lost_by(op: Operation) -> str:
    """Why an operation has no inverse."""
    if isinstance(op, Cast):
        return f"{op.dtype} has not a number of its own for each that there was"
    if isinstance(op, Slice):
        return op.why or "what is cut off is stored nowhere"
    if isinstance(op, Fold):
        return "the vector that is multiplied in is stored nowhere"
    return str(getattr(op, "why", "")) or "it has no inverse"


def rounds(operations: Sequence[Operation]) -> bool:
    """Whether any of them computes numbers, so that a wider dtype would keep more of them."""
    return any(isinstance(op, Add | Scale | Fold | Cast) for op in operations)


class Comparison:
    """Two runs of one tensor's elements, compared part by part; `finish` raises NotEqualError where any differ."""

    def __init__(self, step: Step, key: str) -> None:
        self._step, self._key = step, key
        self._first: tuple[int, float, float] | None = None
        self._count = 0

    def add(self, start: int, before: Any, after: Any) -> None:
        """Compare two flat torch tensors of one dtype, whose first element is number `start` of the whole."""
        import torch

        bits = getattr(torch, _BITS[before.element_size()]) if not before.is_complex() else None
        x, y = (before, after) if bits is None else (before.view(bits), after.view(bits))
        if torch.equal(x, y):
            return
        odd = (x != y).nonzero().flatten()
        self._count += odd.numel()
        if self._first is None:
            at = int(odd[0])
            self._first = start + at, _number(before[at]), _number(after[at])

    def finish(self) -> None:
        if self._first is not None:
            first, before, after = self._first
            elements = 1
            for size in self._step.in_types[self._key].shape:
                elements *= size
            names = tuple(map(ops.name, self._step.ops))
            raise NotEqualError(
                Difference(self._step.rule, self._key, first, before, after, self._count, elements, names)
            )


def _number(element: Any) -> float:
    return float(element.real if element.is_complex() else element)
