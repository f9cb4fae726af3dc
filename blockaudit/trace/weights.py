"""Weights of a checkpoint by positioned reads: a layer's are in memory while it runs, and no longer.

A shard is never mapped: under a memory limit the mapping itself would fail, however little of it is read. What is held
at most: the layer that runs and the next one, as they are stored, widened copies of what is small, and one block of
what is not. An embedding or a head of real size is never held: its rows are read where they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from blockaudit.checkpoint.values import read_into
from blockaudit.errors import RequestError
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.reference.tensors import Source

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
# Elements above which a matrix is not held: its parts are read where they are used.
LARGE = 1 << 26
# Bytes of one part.
PART = 1 << 24
# Bytes of widened copies that are kept while a layer runs.
_WIDENED = 1 << 26
_Fetched = tuple[Tensor, Any]  # the tensor on its device, and the event of its copy


class Weights:
    """Tensors of one checkpoint by key, on one device.

    `dtypes` that a method takes are the ones that a tensor of floats goes through: (bfloat16, float32) are the values
    that a bfloat16 model has, in float32. Raises RequestError where a tensor cannot be read.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        self.checkpoint, self.device = checkpoint, device
        self._cuda = device.type == "cuda"
        self._copies: Any = torch.cuda.Stream(device) if self._cuda else None
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="weights")
        self._files = Lock()  # the files that are open are shared, and the oldest of them is closed
        self._ahead: dict[str, Future[_Fetched]] = {}
        self._next: dict[str, None] = {}
        self._held: dict[str, Tensor] = {}  # as stored, of the layer that runs
        self._widened: dict[tuple[str, tuple[torch.dtype, ...]], Tensor] = {}
        self._spare = _WIDENED
        self._parts: dict[torch.dtype, Tensor] = {}

    def __contains__(self, key: str) -> bool:
        return key in self.checkpoint.tensors

    def shape(self, key: str) -> tuple[int, ...]:
        return self.checkpoint.tensors[key].shape

    def tensor(self, key: str, *dtypes: torch.dtype) -> Tensor:
        """The whole tensor, on the device; as stored where no dtype is named."""
        value = self._stored(key)
        steps = _steps(value.dtype, dtypes)
        if not steps:
            return value
        made = self._widened.get((key, steps))
        if made is None:
            made = _cast(value, steps)
            if made.nbytes <= self._spare:
                self._spare -= made.nbytes
                self._widened[key, steps] = made
        return made

    def rows(self, key: str, ids: Tensor, *dtypes: torch.dtype) -> Tensor:
        """Rows of a matrix [rows, ...] by number, [*ids.shape, ...]."""
        if not self._parted(key):
            value = self._stored(key)[ids]
            return _cast(value, _steps(value.dtype, dtypes))
        count, *rest = self.shape(key)
        unique: Any = torch.unique  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        distinct: Any = unique(ids, return_inverse=True)
        places: Tensor = distinct[1]
        wanted: list[int] = distinct[0].tolist()
        if wanted and not 0 <= wanted[0] <= wanted[-1] < count:
            raise IndexError(f"{key}: row {wanted[-1]} of {count}")
        value = self._empty(key, (len(wanted), *rest))
        for i, row in enumerate(wanted):
            self._fill(key, value[i : i + 1], row)
        value = value.to(self.device, non_blocking=True)
        return _cast(value, _steps(value.dtype, dtypes))[places]

    def blocks(self, key: str, *dtypes: torch.dtype) -> Iterator[Tensor]:
        """A matrix [rows, ...] in blocks of rows that lie one behind the other: one, where that takes no more room.

        Without gradients a block holds until the next one is asked for: they are written over one another.
        """
        size = self._part(key, dtypes)
        if size is None:
            yield self.tensor(key, *dtypes)
            return
        count = self.shape(key)[0]
        for start in range(0, count, size):
            yield self._block(key, start, min(start + size, count), dtypes)

    def _block(self, key: str, start: int, stop: int, dtypes: tuple[torch.dtype, ...]) -> Tensor:
        if self._parted(key):
            shape = (stop - start, *self.shape(key)[1:])
            host = self._room(shape, DTYPES.get(self.checkpoint.tensors[key].dtype))
            host = self._empty(key, shape) if host is None else host
            self._fill(key, host, start)
            value = host.to(self.device, non_blocking=True)
        else:
            value = self._stored(key)[start:stop]
        for dtype in _steps(value.dtype, dtypes):
            room = self._room(tuple(value.shape), dtype)
            value = value.to(dtype) if room is None else room.copy_(value)
        return value

    def _room(self, shape: tuple[int, ...], dtype: torch.dtype | None) -> Tensor | None:
        """The place of one part in a dtype; None where parts may not be written over, or need not.

        Parts that come and go between results that stay leave holes in the heap in which no further part fits.
        """
        if dtype is None or self.device.type != "cpu" or torch.is_grad_enabled():
            return None
        held = self._parts.get(dtype)
        if held is None or held.numel() < prod(shape):
            held = self._parts[dtype] = torch.empty(prod(shape), dtype=dtype)
        return held[: prod(shape)].view(shape)

    def _part(self, key: str, dtypes: tuple[torch.dtype, ...]) -> int | None:
        """How many rows are one part of a matrix; None where it is taken whole."""
        shape, stored = self.shape(key), DTYPES.get(self.checkpoint.tensors[key].dtype)
        if len(shape) != 2 or stored is None or not (self._parted(key) or _steps(stored, dtypes)):
            return None
        row = shape[1] * max([stored.itemsize, *(d.itemsize for d in dtypes)])
        return max(1, PART // row) if shape[0] * row > PART else None

    def matrix(self, key: str, *dtypes: torch.dtype) -> Matrix | None:
        """A matrix that is better not held whole in the last of these dtypes; None of any other tensor."""
        return Matrix(self, key, dtypes) if self._part(key, dtypes) is not None else None

    def source(self, *dtypes: torch.dtype) -> Source:
        """What a reference reads its weights from."""
        return _Typed(self, dtypes)

    def release(self) -> None:
        """Let go of every tensor that was handed out: the layer has run."""
        self._held = {k: v for k, v in self._held.items() if k in self._next}
        self._ahead = {k: f for k, f in self._ahead.items() if k in self._next or (not f.cancel() and not f.done())}
        self._widened.clear()
        self._spare = _WIDENED

    def prefetch(self, keys: Iterable[str]) -> None:
        """Read these on another thread while the caller computes: what the next layer needs, and nothing further."""
        self._next = dict.fromkeys(k for k in keys if k in self and not self._parted(k))
        for key in self._next:
            if key not in self._ahead and key not in self._held:
                self._ahead[key] = self._reader.submit(self._fetched, key)

    def close(self) -> None:
        self._reader.shutdown(wait=True, cancel_futures=True)
        self._ahead.clear()
        self._held.clear()
        self._widened.clear()
        self._parts.clear()

    def _parted(self, key: str) -> bool:
        return len(self.shape(key)) == 2 and prod(self.shape(key)) > LARGE

    def _stored(self, key: str) -> Tensor:
        value = self._held.get(key)
        if value is None:
            future = self._ahead.pop(key, None)
            value, copied = future.result() if future is not None else self._fetched(key)
            if copied is not None:
                current: Any = torch.cuda.current_stream(self.device)
                current.wait_event(copied)
                value.record_stream(current)
            self._held[key] = value
        return value

    def _fetched(self, key: str) -> _Fetched:
        """One tensor as stored. On cuda its copy runs beside what is being computed: pinned, on a stream of its own."""
        host = self._empty(key, self.shape(key))
        self._fill(key, host, 0)
        if not self._cuda:
            return host.to(self.device), None
        with torch.cuda.stream(self._copies):
            return host.to(self.device, non_blocking=True), self._copies.record_event()

    def _empty(self, key: str, shape: tuple[int, ...]) -> Tensor:
        """Room in the processor's memory for (some rows of) a tensor. Raises RequestError for what has no such room."""
        header, file = self.checkpoint.tensors[key], self.checkpoint.owner[key]
        dtype = DTYPES.get(header.dtype)
        if dtype is None:
            raise RequestError(f"{file.name}: {key}: {header.dtype} has no trace yet: dequantise the checkpoint first")
        if key in file.strided:
            raise RequestError(
                f"{file.name}: {key}: its elements do not lie side by side: save the checkpoint as safetensors first"
            )
        if header.nbytes != header.elements * dtype.itemsize:
            raise RequestError(f"{file.name}: {key}: {header.nbytes} bytes for {header.elements} of {header.dtype}")
        return torch.empty(shape, dtype=dtype, pin_memory=self._cuda)

    def _fill(self, key: str, room: Tensor, row: int) -> None:
        """Read rows of a tensor into `room`, from `row` on. Raises RequestError."""
        if room.numel() == 0:
            return
        start = row * room[0].nbytes if room.dim() else 0
        bytes_: Any = room.reshape(-1).view(torch.uint8).numpy()
        with self._files:
            read = read_into(self.checkpoint, key, start, bytes_.data)
        if read != room.nbytes:
            name = self.checkpoint.owner[key].name
            raise RequestError(f"{name}: {key}: {room.nbytes} bytes expected, {read} could be read")


@dataclass(frozen=True)
class Matrix:
    """A matrix [rows, columns] of the checkpoint that is read where it is used, a few rows or a block at a time."""

    weights: Weights
    key: str
    dtypes: tuple[torch.dtype, ...]

    def rows(self, ids: Tensor) -> Tensor:
        return self.weights.rows(self.key, ids, *self.dtypes)

    def blocks(self) -> Iterator[Tensor]:
        return self.weights.blocks(self.key, *self.dtypes)


class _Typed(Source):
    def __init__(self, weights: Weights, dtypes: tuple[torch.dtype, ...]) -> None:
        super().__init__(lambda key: weights.tensor(key, *dtypes))
        self._weights, self._dtypes = weights, dtypes

    def rows(self, key: str, ids: Tensor) -> Tensor:
        return self._weights.rows(key, ids, *self._dtypes)

    def blocks(self, key: str) -> Iterator[Tensor]:
        return self._weights.blocks(key, *self._dtypes)


def _steps(stored: torch.dtype, dtypes: tuple[torch.dtype, ...]) -> tuple[torch.dtype, ...]:
    """The casts that change anything: all that round, and the last."""
    if not stored.is_floating_point or not dtypes:
        return ()
    rounding = [d for d in dtypes[:-1] if torch.promote_types(stored, d) != d]
    steps = (*rounding, dtypes[-1])
    return () if steps == (stored,) else steps


def _cast(value: Tensor, steps: tuple[torch.dtype, ...]) -> Tensor:
    for dtype in steps:
        value = value.to(dtype)
    return value
