"""Where the bytes of one target file go, from front to back: hashed on their way, or copied inside the kernel."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from blockaudit.checkpoint.gathering import WINDOW
from blockaudit.checkpoint.hashing import digester
from blockaudit.checkpoint.ranges import Gathered, OpenFiles, Span
from blockaudit.errors import RequestError
from blockaudit.migrate.convert.copying import copy_range, write_all
from blockaudit.migrate.convert.digests import ReadFiles
from blockaudit.migrate.convert.strands import BLOCK, Block, Blocks, Strand

# O_DIRECT wants offsets and lengths in whole blocks of the device: this is one of every device.
_ALIGNED = 4096
# Bytes that are read and hashed at a time: they are still in the core's own cache then.
_PIECE = 256 << 10
# Bytes after which what was written is brought to the disk beside the work, so that the end need not wait for it all.
_FLUSH = 256 << 20
# Called with every so many bytes that are done; raises where the work is to stop.
Advance = Callable[[int], None]


class Sink(Protocol):
    """One target file. Bytes are given in the order of the file."""

    def copy(self, span: Span) -> str:
        """The bytes of a source range, or of boxes. Returns their digest, empty where hashes are waived."""
        ...

    def write(self, view: memoryview) -> None:
        """Bytes that were made; the caller may change them afterwards."""
        ...

    def again(self, start: int, nbytes: int) -> None:
        """Bytes that stand in the file already."""
        ...

    def finish(self) -> str:
        """Until all is written. Returns the file's SHA-256, empty where hashes are waived."""
        ...


class Hashed:
    """Bytes go through blocks in memory, each of which is hashed for the source's file, the tensor and this file.

    Whole blocks bypass the system's cache (O_DIRECT, open(2)) where the file system lets them: filling the cache with a
    file that nobody reads next costs about half of what hashing it does.
    """

    def __init__(
        self,
        fd: int,
        path: str,
        size: int,
        files: OpenFiles,
        read: ReadFiles,
        pool: ThreadPoolExecutor,
        advance: Advance,
    ) -> None:
        self._fd, self._files, self._read, self._advance = fd, files, read, advance
        self._direct = _direct(path)
        self._hash = hashlib.sha256()
        self._hashing, self._disk = Strand(pool), Strand(pool)
        self._blocks = Blocks()
        self._block: Block | None = None
        self._filled = 0  # of the block, whose first byte stands at `_at`
        self._at = 0
        self._changed = False  # whether the block holds anything that does not stand in the file already
        # Writing behind the end of a file changes its length each time, which is slow.
        os.ftruncate(fd, size)

    def copy(self, span: Span) -> str:
        hasher = digester()
        # What is gathered passes in the tensor's order, which is not that of any file.
        read = None if isinstance(span, Gathered) else self._read.of(span.path)
        done = 0
        while done < span.nbytes:
            block, view = self._room(span.nbytes - done)
            for start in range(0, len(view), _PIECE):
                piece = view[start : start + _PIECE]
                self._files.read_into(span.part(done + start, len(piece)), piece)
                hasher.update(piece)
            if read is not None:
                block.hold()
                read.offer(span.offset + done, view, block)
            done += len(view)
            self._took(len(view), changed=True)
        return hasher.hexdigest()

    def write(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            _, room = self._room(len(view) - done)
            room[:] = view[done : done + len(room)]
            done += len(room)
            self._took(len(room), changed=True)

    def again(self, start: int, nbytes: int) -> None:
        done = 0
        while done < nbytes:
            _, room = self._room(nbytes - done)
            os.preadv(self._fd, [room], start + done)
            done += len(room)
            self._took(len(room), changed=False)

    def finish(self) -> str:
        self._flush()
        self._hashing.wait()
        self._disk.wait()
        return self._hash.hexdigest()

    def close(self) -> None:
        """Write what is there of a file that was given up, let the threads end, and close what this has opened."""
        self._flush()
        for strand in (self._hashing, self._disk):
            strand.settle()
        if self._direct is not None:
            os.close(self._direct)

    def _room(self, most: int) -> tuple[Block, memoryview]:
        """The block that is being filled, and what is left of it, up to `most` bytes."""
        if self._block is None:
            self._hashing.check()
            self._disk.check()
            self._block = self._blocks.take()
            self._filled, self._changed = 0, False
        return self._block, self._block.view[self._filled : min(BLOCK, self._filled + most)]

    def _took(self, nbytes: int, *, changed: bool) -> None:
        self._filled += nbytes
        self._changed |= changed
        if self._filled == BLOCK:
            self._flush()
        self._advance(nbytes)

    def _flush(self) -> None:
        block = self._block
        if block is None:
            return
        view, at = block.view[: self._filled], self._at
        block.hold()
        self._hashing.submit(lambda: self._hash.update(view), block)
        if self._changed:
            block.hold()
            self._disk.submit(lambda: self._put(view, at), block)
        block.let_go()
        self._block, self._at = None, at + len(view)

    def _put(self, view: memoryview, at: int) -> None:
        if self._direct is not None and len(view) % _ALIGNED == 0:
            try:
                if os.pwrite(self._direct, view, at) == len(view):
                    return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                os.close(self._direct)
                self._direct = None
        write_all(self._fd, view, at)


def _direct(path: str) -> int | None:
    """A descriptor that bypasses the cache; None where the file system has none."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | getattr(os, "O_DIRECT", 0))
    except OSError:
        return None


class Plain:
    """Bytes are copied inside the kernel, and nothing is hashed."""

    def __init__(self, fd: int, files: OpenFiles, advance: Advance, durable: bool) -> None:
        self._fd, self._files, self._advance, self._durable = fd, files, advance, durable
        self._at, self._unflushed = 0, 0
        self._flusher = ThreadPoolExecutor(1)

    def copy(self, span: Span) -> str:
        return self._gathered(span) if isinstance(span, Gathered) else self._copied(span)

    def _gathered(self, span: Gathered) -> str:
        buffer = memoryview(bytearray(min(WINDOW, span.nbytes)))
        for done in range(0, span.nbytes, WINDOW):
            part = span.part(done, min(WINDOW, span.nbytes - done))
            self._files.read_into(part, buffer[: part.nbytes])
            self.write(buffer[: part.nbytes])
        return ""

    def _copied(self, span: Span) -> str:
        done = 0
        while done < span.nbytes:
            part = span.part(done, min(_FLUSH, span.nbytes - done))
            if copy_range(self._files.fd(span.path), part.offset, self._fd, self._at, part.nbytes) != part.nbytes:
                raise RequestError(f"{span.path}: it was cut off while it was read")
            done += part.nbytes
            self._wrote(part.nbytes)
        return ""

    def write(self, view: memoryview) -> None:
        write_all(self._fd, view, self._at)
        self._wrote(len(view))

    def again(self, start: int, nbytes: int) -> None:
        self._wrote(nbytes)

    def finish(self) -> str:
        return ""

    def close(self) -> None:
        self._flusher.shutdown()

    def _wrote(self, nbytes: int) -> None:
        self._at += nbytes
        self._unflushed += nbytes
        if self._durable and self._unflushed >= _FLUSH:
            self._unflushed = 0
            self._flusher.submit(os.fdatasync, self._fd)
        self._advance(nbytes)
