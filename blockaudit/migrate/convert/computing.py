"""Steps with operations: inputs read, operations applied, and the way back proved, one step in memory at a time.

What acts element by element (add, scale, cast) is done in parts of some megabytes. Everything else holds its inputs and
its outputs; the inputs are given back before the way back is computed, and are read again to be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from blockaudit.checkpoint.ranges import OpenFiles, Span
from blockaudit.errors import RequestError
from blockaudit.migrate import ops
from blockaudit.migrate.convert.proof import Comparison, RefusedStepError, undoing
from blockaudit.migrate.ops.base import OperationError
from blockaudit.migrate.ops.numbers import TORCH_NAMES
from blockaudit.records.migration import Row, Step, TensorType
from blockaudit.records.operations import Add, Cast, Operation, Scale

# Elements that are computed at a time where they do not depend on each other, and compared at a time.
PART = 1 << 21
SpanOf = Callable[[str], Span]
# Takes the bytes of one output in order.
Write = Callable[[str, memoryview], None]
# Sees the bytes of one input from `start` on.
See = Callable[[str, int, memoryview], None]


class Computing:
    """One step, carried out: `write` gets outputs, `see` inputs. Raises RequestError and the errors of `proof`."""

    def __init__(self, step: Step, span: SpanOf, files: OpenFiles, write: Write, see: See) -> None:
        self._step, self._span, self._files = step, span, files
        self._write, self._see = write, see
        back = undoing(step)
        self._back: list[Operation] | None = back if isinstance(back, list) else None

    def run(self) -> None:
        if self._by_element():
            self._in_parts()
        else:
            self._whole()

    # -- element by element -------------------------------------------------------------------------------------------

    def _by_element(self) -> bool:
        one = len(self._step.inputs) == len(self._step.outputs) == 1
        return one and all(isinstance(op, Add | Scale | Cast) for op in self._step.ops)

    def _in_parts(self) -> None:
        (key,), (target,) = self._step.inputs, self._step.outputs
        compared = Comparison(self._step, key)
        for start, before in self._parts(key):
            self._see(key, start * before.element_size(), bytes_of(before))
            (row,) = ops.apply(self._step.ops, (Row((), (before,)),))
            self._write(target, bytes_of(row.values[0]))
            if self._back is not None:
                (again,) = ops.apply(self._back, (row,))
                compared.add(start, before, again.values[0])
        compared.finish()

    def _parts(self, key: str) -> Iterator[tuple[int, Any]]:
        """The elements of an input as flat tensors, with the number of the first of each."""
        type_, span = self._step.in_types[key], self._span(key)
        width = element_size(type_)
        for start in range(0, prod(type_.shape), PART):
            count = min(PART, prod(type_.shape) - start)
            yield start, self._read(TensorType(type_.dtype, (count,)), span.part(start * width, count * width))

    # -- as a whole ---------------------------------------------------------------------------------------------------

    def _whole(self) -> None:
        found = self._applied()
        for row in found:
            for key, tensor in zip(row.values, self._tensors[row.at], strict=True):
                self._write(key, bytes_of(tensor))
        if self._back is not None:
            self._prove(self._back)
        self._tensors.clear()

    def _applied(self) -> tuple[Row[str], ...]:
        """Apply the operations, and keep what comes out in `_tensors`, each on its own."""
        state = tuple(Row(row.at, tuple(map(self._input, row.values))) for row in self._step.sources)
        try:
            out = ops.apply(self._step.ops, state)
        except OperationError as error:
            raise RefusedStepError(self._step.rule, self._step.inputs, str(error)) from error
        del state
        by_place = {row.at: row.values for row in out}
        del out
        # Views would keep the inputs alive.
        self._tensors = {at: [t.contiguous() for t in values] for at, values in by_place.items()}
        return self._step.targets

    def _input(self, key: str) -> Any:
        type_ = self._step.in_types[key]
        tensor = self._read(type_, self._span(key))
        self._see(key, 0, bytes_of(tensor))
        return tensor

    def _prove(self, back: list[Operation]) -> None:
        state = tuple(Row(row.at, tuple(self._tensors[row.at])) for row in self._step.targets)
        self._tensors.clear()
        again = {row.at: row.values for row in ops.apply(back, state)}
        del state
        for row in self._step.sources:
            for key, tensor in zip(row.values, again[row.at], strict=True):
                self._compare(key, tensor.contiguous().reshape(-1))

    def _compare(self, key: str, after: Any) -> None:
        compared = Comparison(self._step, key)
        for start, before in self._parts(key):
            compared.add(start, before, after[start : start + before.numel()])
        compared.finish()

    def _read(self, type_: TensorType, span: Span) -> Any:
        import torch

        raw: Any = torch.empty(span.nbytes, dtype=torch.uint8)
        self._files.read_into(span, memoryview(raw.numpy()))
        return raw.view(torch_dtype(type_)).reshape(type_.shape)


def torch_dtype(type_: TensorType) -> Any:
    """Torch's dtype of a type. Raises RequestError where it has none."""
    import torch

    if type_.dtype not in TORCH_NAMES:
        raise RequestError(f"{type_.dtype}: no operation acts on tensors of this dtype, which can only be renamed")
    return getattr(torch, TORCH_NAMES[type_.dtype])


def element_size(type_: TensorType) -> int:
    """Bytes of one element."""
    return int(torch_dtype(type_).itemsize)


def bytes_of(tensor: Any) -> memoryview:
    """The bytes of a contiguous torch tensor, not copied."""
    import torch

    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
