"""Where the bytes of a tensor lie, for what reads whole checkpoints: files held open, and held to what they were."""

from __future__ import annotations

import os
import threading

import msgspec

from blockaudit.checkpoint import storage
from blockaudit.checkpoint.files import open_regular, pread_into, reason, short
from blockaudit.checkpoint.gathering import Box, gather, within
from blockaudit.errors import RequestError
from blockaudit.records.checkpoint import DTYPE_BITS, Checkpoint


class Span(msgspec.Struct, frozen=True):
    """A range of bytes of one file: `offset` from its beginning, `nbytes` long."""

    path: str
    offset: int
    nbytes: int

    def part(self, start: int, nbytes: int) -> Span:
        """The bytes `start` to `start + nbytes` of this range."""
        return Span(self.path, self.offset + start, nbytes)


class Gathered(Span, frozen=True, kw_only=True):
    """Bytes `start` to `start + nbytes` of a tensor that lies in several boxes, the first at `offset` of `path`."""

    boxes: tuple[Box, ...]
    start: int = 0

    def part(self, start: int, nbytes: int) -> Gathered:
        """The bytes `start` to `start + nbytes` of this range."""
        return Gathered(self.path, self.offset, nbytes, boxes=self.boxes, start=self.start + start)

    def alone(self) -> Span:
        """This range with no more boxes than it touches, and as a range of one file where it is one."""
        place = within(self.boxes, self.start, self.nbytes)
        if place is not None:
            return Span(*place, self.nbytes)
        stop = self.start + self.nbytes
        boxes = tuple(one for one in self.boxes if one.first < stop and self.start < one.last)
        head = next(iter(boxes), self)
        return Gathered(head.path, head.offset, self.nbytes, boxes=boxes, start=self.start)


def span_of(checkpoint: Checkpoint, key: str) -> Span:
    """The one range of bytes that a tensor of a weight file is. Raises RequestError where it is none, or another's.

    Of a distributed checkpoint, headers do not say: see `blockaudit.checkpoint.spans`.
    """
    tensor, file = checkpoint.tensors[key], checkpoint.owner[key]
    if key in file.strided:
        raise RequestError(
            f"{checkpoint.source}: {short(key)}: its elements do not lie side by side in {file.name}: load the state "
            f"dict in torch, call contiguous() on it and save it anew"
        )
    bits = DTYPE_BITS.get(tensor.dtype)
    if bits is None:
        raise RequestError(
            f"{checkpoint.source}: {short(key)} is {tensor.dtype}, packed by its runtime: no tensor of a known dtype"
        )
    start, stop = tensor.data_offsets
    if tensor.elements * bits != 8 * (stop - start) or not 0 <= start <= stop <= file.size - file.data_start:
        raise RequestError(
            f"{checkpoint.source}: {short(key)}: {tensor.dtype} {list(tensor.shape)} takes "
            f"{tensor.elements * bits // 8:,} bytes, and {file.name} has {stop - start:,} of it"
        )
    return Span(file.path, file.data_start + start, stop - start)


class OpenFiles:
    """Files that many threads read by position. Each is what it was when this was made, or is refused.

    `identities` are (device, inode, size in bytes, mtime in nanoseconds) by path.
    """

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._lock = threading.Lock()
        self._fds: dict[str, int] = {}
        self.identities = {path: _identity(path) for path in paths}

    def fd(self, path: str) -> int:
        """A descriptor for positioned reads, which stays this object's. Raises RequestError."""
        with self._lock:
            if path not in self._fds:
                try:
                    self._fds[path] = open_regular(path)[0]
                except OSError as error:
                    raise RequestError(f"{path}: cannot be read: {reason(error)}") from error
                self._held(path, os.fstat(self._fds[path]))
            return self._fds[path]

    def read_into(self, span: Span, view: memoryview) -> None:
        """Fill `view` with the bytes of a range of its length. Raises RequestError where the file ends first."""
        if isinstance(span, Gathered):
            gather(span.boxes, span.start, view, self.read_at)
        else:
            self.read_at(span.path, span.offset, view)

    def read_at(self, path: str, offset: int, view: memoryview) -> None:
        """Fill `view` with the bytes of a file from `offset` on. Raises RequestError where the file ends first."""
        try:
            got = pread_into(self.fd(path), view, offset)
        except OSError as error:
            raise RequestError(f"{path}: cannot be read: {reason(error)}") from error
        if got != len(view):
            raise RequestError(f"{path}: it ends at byte {offset + got:,}: it was cut off while it was read")

    def check(self, *paths: str) -> None:
        """Raise RequestError where one of the files (all, where none is named) is not what it was."""
        for path in paths or self.identities:
            if _identity(path) != self.identities[path]:
                raise RequestError(_changed(path))

    def _held(self, path: str, status: os.stat_result) -> None:
        if (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns) != self.identities[path]:
            raise RequestError(_changed(path))

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            while self._fds:
                os.close(self._fds.popitem()[1])


def _identity(path: str) -> storage.Identity:
    try:
        return storage.identity(path)
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {reason(error)}") from error


def _changed(path: str) -> str:
    return f"{path}: it changed while it was read: run again once nothing writes to it"
