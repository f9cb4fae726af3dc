"""The header of a GGUF file: typed metadata, then the name, shape, type and place of every tensor.

Read by position and within bounds. Arrays of metadata are stepped over: of a vocabulary its length is all that counts.
"""

from __future__ import annotations

import struct
from math import prod
from typing import Any

import msgspec

from blockaudit.checkpoint.files import PositionedFile, short
from blockaudit.checkpoint.gguf.tables import block_sizes
from blockaudit.records.checkpoint import TensorHeader

MAGIC = b"GGUF"
_READ = 1 << 20
# The largest vocabularies with their merges take 20 MB.
_MAX_HEADER = 128 << 20
_MAX_STRINGS = 4_000_000
_MAX_ENTRIES = 1_000_000
_MAX_TENSORS = 200_000
_MAX_NAME = 65_535
_MAX_RANK = 8
# Numbers of an array that are kept: one for each layer is what a model needs.
_KEPT = 4096
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_FLOAT32, _STRING, _ARRAY = 6, 8, 9


class BadHeaderError(Exception):
    """A header that is not read on: the rule that it breaks, and why."""

    def __init__(self, rule: str, why: str, expected: Any = None, observed: Any = None) -> None:
        super().__init__(why)
        self.rule, self.why, self.expected, self.observed = rule, why, expected, observed


class Array(msgspec.Struct, frozen=True):
    """An array of metadata: its length, and its numbers where there are few."""

    length: int
    numbers: tuple[int | float | bool, ...] = ()


class Header(msgspec.Struct, frozen=True):
    """What a header says. Byte ranges count from `data_start`; tensors that are named twice are in `repeated`."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorHeader]
    repeated: tuple[tuple[str, TensorHeader], ...]
    data_start: int
    alignment: int


class _Reader:
    """The bytes of a file in order, never more of them than a header may have."""

    def __init__(self, file: PositionedFile) -> None:
        self._file, self._buffer, self._start, self._at = file, b"", 0, 0

    @property
    def position(self) -> int:
        return self._start + self._at

    def take(self, length: int) -> bytes:
        if self._at + length > len(self._buffer):
            self._fill(length)
        self._at += length
        return self._buffer[self._at - length : self._at]

    def _fill(self, length: int) -> None:
        start = self.position
        if start + length > self._file.size:
            raise BadHeaderError(
                "truncated-file",
                f"the file ends inside its header: {start + length:,} bytes are needed, it has {self._file.size:,}",
                start + length,
                self._file.size,
            )
        if start + length > _MAX_HEADER:
            raise BadHeaderError("corrupt-header", f"its header claims more than {_MAX_HEADER:,} bytes")
        self._buffer, self._start, self._at = self._file.read_at(max(length, _READ), start), start, 0
        if len(self._buffer) < length:
            raise BadHeaderError("truncated-file", "the file became shorter while it was read")

    def number(self, code: str) -> Any:
        kind = struct.Struct(f"<{code}")
        return kind.unpack(self.take(kind.size))[0]

    def text(self, limit: int = _MAX_HEADER) -> str:
        length = self.number("Q")
        if length > limit:
            raise BadHeaderError("corrupt-header", f"a name or text in it claims {length:,} bytes")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadHeaderError("corrupt-header", f"a text in it is not valid UTF-8 ({error.reason})") from error

    def value(self) -> Any:
        kind = self.number("I")
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise BadHeaderError("corrupt-header", f"its metadata has a value of the unknown type {kind}")
        number = self.number(_SCALARS[kind])
        return _shortest(number) if kind == _FLOAT32 else number

    def _array(self) -> Array:
        kind, length = self.number("I"), self.number("Q")
        if kind == _STRING:
            if length > _MAX_STRINGS:
                raise BadHeaderError("corrupt-header", f"its metadata has an array of {length:,} texts")
            for _ in range(length):
                self.take(self._bounded(self.number("Q")))
            return Array(length)
        if kind not in _SCALARS:
            raise BadHeaderError("corrupt-header", f"its metadata has an array of the type {kind}")
        width = struct.calcsize(f"<{_SCALARS[kind]}")
        raw = self.take(self._bounded(length * width))
        return Array(length, struct.unpack(f"<{length}{_SCALARS[kind]}", raw) if length <= _KEPT else ())

    def _bounded(self, length: int) -> int:
        if length > _MAX_HEADER:
            raise BadHeaderError("corrupt-header", f"a value in its metadata claims {length:,} bytes")
        return length


def _shortest(number: float) -> float:
    """The shortest decimal that is this float32: 1e-05, where as a float64 it is 9.999999747378752e-06."""
    packed = struct.pack("<f", number)
    found = (float(f"{number:.{digits}g}") for digits in range(1, 9))
    return next((f for f in found if abs(f) < 3.4e38 and struct.pack("<f", f) == packed), number)


def _version(reader: _Reader) -> None:
    if reader.take(4) != MAGIC:
        raise BadHeaderError("unreadable-file", "it does not begin with GGUF")
    version = reader.number("I")
    if version in (2, 3):
        return
    if version and version % 65536 == 0:
        raise BadHeaderError("unreadable-file", "it was written for big-endian machines: convert it anew")
    raise BadHeaderError("unreadable-file", f"this is GGUF version {version}; 2 and 3 are read: convert it anew")


def _count(reader: _Reader, what: str, limit: int) -> int:
    count = reader.number("Q")
    if count > limit:
        raise BadHeaderError("corrupt-header", f"the header claims {count:,} {what}")
    return count


def _metadata(reader: _Reader, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(count):
        key = reader.text(_MAX_NAME)
        if key in found:
            raise BadHeaderError("corrupt-header", f"its metadata gives {short(key, 80)} twice")
        found[key] = reader.value()
    return found


def _tensor(reader: _Reader) -> tuple[str, TensorHeader]:
    """One entry. GGUF names the fastest axis first: shapes are turned round, as every other container has them."""
    name, rank = reader.text(_MAX_NAME), reader.number("I")
    if rank > _MAX_RANK:
        raise BadHeaderError("corrupt-header", f"{short(name, 80)} has {rank} dimensions")
    shape = tuple(reversed([reader.number("Q") for _ in range(rank)]))
    kind, offset = reader.number("I"), reader.number("Q")
    if kind not in block_sizes():
        raise BadHeaderError("corrupt-header", f"{short(name, 80)} has the unknown type {kind}", observed=kind)
    dtype, elements, width = block_sizes()[kind]
    total = prod(shape)
    if max((*shape, total, offset)) >= 2**60 or (shape[-1] if shape else total) % elements:
        raise BadHeaderError("corrupt-header", f"{short(name, 80)} of type {dtype} cannot have the shape {list(shape)}")
    return name, TensorHeader(dtype, shape, (offset, offset + total // elements * width))


def read(file: PositionedFile) -> Header:
    """Read the header of an open GGUF file. Raises BadHeaderError; RequestError where the package is missing."""
    reader = _Reader(file)
    _version(reader)
    tensors = _count(reader, "tensors", _MAX_TENSORS)
    metadata = _metadata(reader, _count(reader, "entries of metadata", _MAX_ENTRIES))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise BadHeaderError("corrupt-header", f"general.alignment is {alignment!r}, which is no power of two")
    found: dict[str, TensorHeader] = {}
    repeated: list[tuple[str, TensorHeader]] = []
    for _ in range(tensors):
        name, tensor = _tensor(reader)
        if name in found:
            repeated.append((name, tensor))
        else:
            found[name] = tensor
    start = -(-reader.position // alignment) * alignment
    return Header(metadata, found, tuple(repeated), start, alignment)
