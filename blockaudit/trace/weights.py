"""Weights of a checkpoint by positioned reads: a layer's are in memory while it runs, and no longer.

A shard is never mapped: under a memory limit the mapping itself would fail, however little of it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from blockaudit.checkpoint.values import read_block
from blockaudit.errors import RequestError
from blockaudit.records.checkpoint import Checkpoint

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


class Weights:
    """Tensors of one checkpoint by key, on one device. What was fetched ahead is handed over once."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        self.checkpoint, self.device = checkpoint, device
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="weights")
        self._ahead: dict[str, Future[torch.Tensor]] = {}
        self._held: dict[str, torch.Tensor] = {}  # as stored, of the layer that runs

    def __contains__(self, key: str) -> bool:
        return key in self.checkpoint.tensors

    def shape(self, key: str) -> tuple[int, ...]:
        return self.checkpoint.tensors[key].shape

    def tensor(self, key: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A tensor as stored, or (floats) in `dtype`, on the device. Raises RequestError where it cannot be read."""
        value = self._held.get(key)
        if value is None:
            future = self._ahead.pop(key, None)
            read = future.result() if future is not None else self._read(key)
            value = self._held[key] = read.to(self.device, non_blocking=True)
        return value.to(dtype) if dtype is not None and value.is_floating_point() else value

    def release(self) -> None:
        """Let go of every tensor that was handed out: the layer has run."""
        self._held.clear()

    def prefetch(self, keys: Iterable[str]) -> None:
        """Read these on another thread, while the caller computes."""
        for key in keys:
            if key in self and key not in self._ahead:
                self._ahead[key] = self._reader.submit(self._read, key)

    def close(self) -> None:
        self._reader.shutdown(wait=True, cancel_futures=True)
        self._ahead.clear()

    def _read(self, key: str) -> torch.Tensor:
        header, file = self.checkpoint.tensors[key], self.checkpoint.owner[key]
        dtype = DTYPES.get(header.dtype)
        if dtype is None:
            raise RequestError(f"{file.name}: {key}: {header.dtype} has no trace yet: dequantise the checkpoint first")
        if key in file.strided:
            raise RequestError(
                f"{file.name}: {key}: its elements do not lie side by side: save the checkpoint as safetensors first"
            )
        if header.elements == 0:
            return torch.empty(header.shape, dtype=dtype)
        data = read_block(self.checkpoint, key, 0, header.nbytes)
        if len(data) != header.nbytes or len(data) != header.elements * dtype.itemsize:
            raise RequestError(f"{file.name}: {key}: {header.nbytes} bytes expected, {len(data)} could be read")
        value = torch.frombuffer(bytearray(data), dtype=dtype).reshape(header.shape)
        return value.pin_memory() if self.device.type == "cuda" else value
