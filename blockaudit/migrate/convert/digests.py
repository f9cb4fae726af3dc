"""The SHA-256 of files that are read, taken from the bytes that pass by."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor

from blockaudit.checkpoint.ranges import OpenFiles, Span
from blockaudit.migrate.convert.strands import BLOCK, Block, Strand


class Read:
    """The SHA-256 of a file that is read in parts: those offered in order are used, what lies between is read here."""

    def __init__(self, files: OpenFiles, path: str, pool: ThreadPoolExecutor) -> None:
        self._files, self._path, self._size = files, path, files.identities[path][2]
        self._hash = hashlib.sha256()
        self._at = 0
        self._strand = Strand(pool)

    def offer(self, offset: int, view: memoryview, block: Block) -> None:
        """Bytes that were read at `offset`, a part of a block that this lets go of."""

        def call() -> None:
            if offset + len(view) > self._at:
                self._up_to(offset)
                self._hash.update(view[self._at - offset :])
                self._at = offset + len(view)

        self._strand.submit(call, block)

    def reach(self, offset: int) -> None:
        """Bytes up to `offset` were read elsewhere just now: hash up to there while the system has them at hand."""
        self._strand.submit(lambda: self._up_to(offset))

    def rest(self) -> None:
        """No more will be offered: read what is left."""
        self.reach(self._size)

    def finish(self) -> str:
        self._strand.wait()
        return self._hash.hexdigest()

    def _up_to(self, offset: int) -> None:
        if self._at >= offset:
            return
        buffer = memoryview(bytearray(min(BLOCK, offset - self._at)))
        while self._at < offset:
            part = buffer[: min(BLOCK, offset - self._at)]
            self._files.read_into(Span(self._path, self._at, len(part)), part)
            self._hash.update(part)
            self._at += len(part)


class ReadFiles:
    """`Read` of each source file, made when something of it is offered first."""

    def __init__(self, files: OpenFiles, pool: ThreadPoolExecutor) -> None:
        self._files, self._pool = files, pool
        self._found: dict[str, Read] = {}
        self._lock = threading.Lock()

    def of(self, path: str) -> Read:
        with self._lock:
            if path not in self._found:
                self._found[path] = Read(self._files, path, self._pool)
            return self._found[path]

    def finish(self, paths: tuple[str, ...]) -> dict[str, str]:
        """The SHA-256 of every file, by path; what nothing was offered of is read whole."""
        for path in paths:
            self.of(path).rest()
        return {path: self.of(path).finish() for path in paths}
