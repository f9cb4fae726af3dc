"""Bytes to numbers with the standard library: enough for a norm vector of a few thousand elements."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Sequence

Numbers = Sequence[float]


def _array(code: str) -> Callable[[bytes], Numbers]:
    def decode(raw: bytes) -> Numbers:
        values: array[float] = array(code, raw)  # pyright: ignore[reportAssignmentType]
        if sys.byteorder == "big":
            values.byteswap()
        return values

    return decode


def _bfloat16(raw: bytes) -> Numbers:
    """A bfloat16 is the upper half of a float32: the lower half is filled with zeros."""
    wide = bytearray(2 * len(raw))
    wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
    return _array("f")(bytes(wide))


def _float16(raw: bytes) -> Numbers:
    return struct.unpack(f"<{len(raw) // 2}e", raw)


# dtype -> decoder of little-endian bytes. Eight bit floats are not here: no norm vector is stored in one.
DECODERS: dict[str, Callable[[bytes], Numbers]] = {
    "F32": _array("f"),
    "F64": _array("d"),
    "F16": _float16,
    "BF16": _bfloat16,
    "I8": _array("b"),
    "U8": _array("B"),
    "BOOL": _array("B"),
    "I16": _array("h"),
    "U16": _array("H"),
    "I32": _array("i"),
    "U32": _array("I"),
    "I64": _array("q"),
    "U64": _array("Q"),
}
