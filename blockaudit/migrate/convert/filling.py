"""Tensors that no source feeds: zeros and ones, as the map says with its reason."""

from __future__ import annotations

import struct

from blockaudit.errors import RequestError
from blockaudit.records.migration import Filled

# One, in every dtype that has one: IEEE 754, bfloat16 as its upper half, and the two eight bit floats of OFP8 (OCP
# 2023) with exponent biases 7 and 15.
_ONES: dict[str, bytes] = {
    "F64": struct.pack("<d", 1), "F32": struct.pack("<f", 1), "F16": struct.pack("<e", 1), "BF16": b"\x80\x3f",
    "I64": struct.pack("<q", 1), "I32": struct.pack("<i", 1), "I16": struct.pack("<h", 1), "I8": b"\x01",
    "U64": struct.pack("<Q", 1), "U32": struct.pack("<I", 1), "U16": struct.pack("<H", 1), "U8": b"\x01",
    "BOOL": b"\x01", "F8_E4M3": b"\x38", "F8_E5M2": b"\x3c",
}  # fmt: skip


def pattern(filled: Filled) -> bytes:
    """The bytes that are repeated. Raises RequestError for a value that is none of ours."""
    if filled.value == "zeros":
        return b"\0"
    one = _ONES.get(filled.type.dtype)
    if filled.value == "ones" and one is not None:
        return one
    raise RequestError(
        f"{filled.key}: the map initialises it with {filled.value!r} in {filled.type.dtype}, and a conversion makes "
        f"zeros and ones alone: a recipe is training, which comes after it"
    )


def part(of: bytes, start: int, nbytes: int) -> bytes:
    """Bytes `start` to `start + nbytes` of an endless row of a pattern."""
    shift = start % len(of)
    return (of * (nbytes // len(of) + 2))[shift : shift + nbytes]
