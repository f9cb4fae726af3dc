"""NaN and infinity by their bit patterns: every byte of a tensor is streamed, none is converted."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from blockaudit.checkpoint.values import chunks
from blockaudit.records.checkpoint import Checkpoint

# Bytes in flight; the comparison makes one array as large and one of its elements' count.
_CHUNK = 8 << 20
# dtype -> (unsigned integer of the same width, mask, value): non-finite where (bits & mask) == value.
_PATTERNS: dict[str, tuple[str, int, int]] = {
    "F16": ("<u2", 0x7C00, 0x7C00),
    "BF16": ("<u2", 0x7F80, 0x7F80),
    "F32": ("<u4", 0x7F800000, 0x7F800000),
    "F64": ("<u8", 0x7FF0000000000000, 0x7FF0000000000000),
    "C64": ("<u4", 0x7F800000, 0x7F800000),  # two float32 an element
    "F8_E5M2": ("u1", 0x7C, 0x7C),
    "F8_E4M3": ("u1", 0x7F, 0x7F),  # no infinity, and one NaN of either sign
    "F8_E4M3FNUZ": ("u1", 0xFF, 0x80),  # NaN is where minus zero would be
    "F8_E5M2FNUZ": ("u1", 0xFF, 0x80),
    "F8_E8M0": ("u1", 0xFF, 0xFF),
}


@dataclass(frozen=True, slots=True)
class NonFinite:
    """How many values of a tensor are NaN or infinite, the flat index of the first (-1 if none); was all of it read."""

    count: int
    first: int
    complete: bool


def count_nonfinite(ckpt: Checkpoint, key: str, dtype: str = "") -> NonFinite:
    """Count the values of a tensor that are NaN or infinite; dtypes that cannot hold any have none.

    `dtype` says what the bytes mean where the header names only their width (exponents stored as U8).
    Indices are in elements in stored order (row-major where the tensor is not strided). Complex values count once per
    part. Memory is bounded by 32 MB whatever the tensor's size.
    """
    tensor = ckpt.tensors[key]
    pattern = _PATTERNS.get(dtype or tensor.dtype)
    if pattern is None:
        return NonFinite(0, -1, True)
    numpy: Any = importlib.import_module("numpy")  # .2 s, and only the values level pays for it
    kind, mask, value = pattern
    width = 1 if kind == "u1" else int(kind[2])
    count, first, position = 0, -1, 0
    for raw in chunks(ckpt, key, _CHUNK):
        bits = numpy.frombuffer(raw, dtype=kind, count=len(raw) // width)
        hits = (bits & mask) == value
        found = int(numpy.count_nonzero(hits))
        if found and first < 0:
            first = (position // width) + int(hits.argmax())
        count += found
        position += len(raw)
    if tensor.dtype == "C64" and first >= 0:
        first //= 2
    return NonFinite(count, first, position == max(tensor.nbytes, 0))
