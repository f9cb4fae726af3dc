"""The SHA-256 of files that are read and written, taken from the chunks that pass by."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor

from blockaudit.checkpoint.ranges import OpenFiles, Span
from blockaudit.migrate.convert.strands import CHUNK, Chunk, Strand

# Bytes that may wait to be hashed beside those of one view.
_KEPT = 32 << 20


class Written:
    """The SHA-256 of a file that is written from front to back."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._hash = hashlib.sha256()
        self._strand = Strand(pool)
        self._kept = 0

    def add_chunk(self, chunk: Chunk) -> None:
        """The next bytes of the file; one user of the chunk is this."""

        def call(failed: bool) -> None:
            try:
                if not failed:
                    self._hash.update(chunk.view)
            finally:
                chunk.let_go()

        self._strand.submit(call)

    def add_view(self, view: memoryview) -> None:
        """The next bytes of the file, which nobody changes any more; they are kept until they are hashed."""
        if self._kept + len(view) > _KEPT:
            self.wait()
        self._kept += len(view)
        self._strand.submit(lambda failed: None if failed else self._hash.update(view))

    def wait(self) -> None:
        """Until all that was added is hashed, and nothing of it is kept."""
        self._strand.wait()
        self._kept = 0

    def finish(self) -> str:
        self._strand.wait()
        return self._hash.hexdigest()


class Read:
    """The SHA-256 of a file that is read in parts: those offered in order are used, what lies between is read here."""

    def __init__(self, files: OpenFiles, path: str, pool: ThreadPoolExecutor) -> None:
        self._files, self._path, self._size = files, path, files.identities[path][2]
        self._hash = hashlib.sha256()
        self._at = 0
        self._strand = Strand(pool)

    def offer(self, offset: int, chunk: Chunk) -> None:
        """Bytes that were read at `offset`; one user of the chunk is this."""

        def call(failed: bool) -> None:
            try:
                if not failed and offset + len(chunk.view) > self._at:
                    self._up_to(offset)
                    self._hash.update(chunk.view[self._at - offset :])
                    self._at = offset + len(chunk.view)
            finally:
                chunk.let_go()

        self._strand.submit(call)

    def reach(self, offset: int) -> None:
        """Bytes up to `offset` were read elsewhere just now: hash up to there while the system has them at hand."""
        self._strand.submit(lambda failed: None if failed else self._up_to(offset))

    def rest(self) -> None:
        """No more will be offered: read what is left."""
        self.reach(self._size)

    def finish(self) -> str:
        self._strand.wait()
        return self._hash.hexdigest()

    def _up_to(self, offset: int) -> None:
        if self._at >= offset:
            return
        buffer = memoryview(bytearray(min(CHUNK, offset - self._at)))
        while self._at < offset:
            part = buffer[: min(CHUNK, offset - self._at)]
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
            return self._found.setdefault(path, Read(self._files, path, self._pool))

    def finish(self, paths: tuple[str, ...]) -> dict[str, str]:
        """The SHA-256 of every file, by path; what nothing was offered of is read whole."""
        for path in paths:
            self.of(path).rest()
        return {path: self.of(path).finish() for path in paths}
