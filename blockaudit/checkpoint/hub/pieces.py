"""Parts of files that have been read, and the entry of the user's cache that keeps them for the next audit.

One entry holds the parts of one commit. A part speaks only for a file that the hub lists now with the same identity and
size; an entry that is not whole, or that says what cannot be, is as good as none.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from threading import Lock

import msgspec

from blockaudit import kept
from blockaudit.checkpoint.hub.listing import Entry

FORMAT = 1
# Bytes of an entry; those of large models have some megabytes.
_LARGEST = 256 * 1024 * 1024


class _Part(msgspec.Struct, frozen=True):
    file: str
    identity: str
    size: int
    offset: int
    data: bytes


class _Stored(msgspec.Struct, frozen=True):
    format: int
    key: str
    parts: list[_Part]


class Pieces:
    """Disjoint parts of files, in order. Safe to use from several threads."""

    def __init__(self) -> None:
        self._parts: dict[str, list[tuple[int, bytes]]] = {}
        self._lock = Lock()

    def around(self, file: str, offset: int) -> tuple[int, bytes]:
        """The part in which `offset` lies, or at whose end; (offset, nothing) where there is none."""
        with self._lock:
            parts = self._parts.get(file, [])
            at = bisect_right(parts, offset, key=_start) - 1
            if at >= 0 and parts[at][0] + len(parts[at][1]) >= offset:
                return parts[at]
        return offset, b""

    def add(self, file: str, offset: int, data: bytes) -> None:
        """Put a part in; what it overlaps or touches becomes one with it."""
        with self._lock:
            apart: list[tuple[int, bytes]] = []
            for start, held in self._parts.get(file, []):
                if start + len(held) < offset or offset + len(data) < start:
                    apart.append((start, held))
                    continue
                # Both speak of the same commit: where they overlap they are equal.
                head = held[: max(offset - start, 0)]
                tail = held[max(offset + len(data) - start, 0) :]
                offset, data = min(start, offset), head + data + tail
            self._parts[file] = sorted([*apart, (offset, data)], key=_start)

    def load(self, path: Path, key: str, files: dict[str, Entry]) -> None:
        """Take in what an earlier audit kept."""
        try:
            stored = msgspec.msgpack.decode(kept.read(path, _LARGEST), type=_Stored)
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
            return
        if stored.format != FORMAT or stored.key != key:
            return
        for part in stored.parts:
            now = files.get(part.file)
            same = now is not None and now.identity and (now.identity, now.size) == (part.identity, part.size)
            if same and part.offset >= 0 and part.offset + len(part.data) <= part.size:
                self.add(part.file, part.offset, part.data)

    def save(self, path: Path, key: str, files: dict[str, Entry]) -> None:
        """Keep all that there is, but for files that nothing identifies."""
        parts = [
            _Part(file, files[file].identity, files[file].size or 0, offset, data)
            for file, held in sorted(self._parts.items())
            for offset, data in held
            if files[file].identity
        ]
        packed = msgspec.msgpack.encode(_Stored(FORMAT, key, parts))
        if parts and len(packed) < _LARGEST:
            kept.write(path, packed)


class Asked:
    """Which bytes of files have been asked for, each counted once. Safe to use from several threads."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, int, int]] = []

    def add(self, file: str, start: int, stop: int) -> None:
        """Count bytes start to stop of a file."""
        self._spans.append((file, start, stop))

    @property
    def total(self) -> int:
        """How many bytes that makes."""
        total, file, reached = 0, "", 0
        for name, start, stop in sorted(self._spans):
            reached = reached if name == file else 0
            file = name
            total += max(stop - max(start, reached), 0)
            reached = max(reached, stop)
        return total


def _start(part: tuple[int, bytes]) -> int:
    return part[0]
