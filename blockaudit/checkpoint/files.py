"""Opening files that nobody vouches for: regular files only, and never more bytes than asked for.

What reads a checkpoint opens its files here, and does not know whether they lie on this machine or on a hub.
"""

from __future__ import annotations

import gc
import os
import stat
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import BinaryIO, Protocol

from blockaudit.records.checkpoint import Identity

# What the path of a file on a hub begins with; every other path is one of this machine.
REMOTE = "hf://"
LFS_MAGIC = b"version https://git-lfs.github.com/spec/"


# Of a file on a hub: it belongs to a commit, and is what it is.
COMMITTED: Identity = (0, 0, 0, 0)


def identity_of(status: os.stat_result) -> Identity:
    """What tells this file from another, and from what it was."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class NotRegularError(OSError):
    """The path is a directory, pipe, socket or device: reading it could block for ever or have effects."""


def open_regular(path: str) -> tuple[int, int]:
    """Open `path` for positioned reads. Returns (file descriptor, size in bytes); raises OSError.

    The descriptor is the caller's to close. ValueError (a NUL, an unencodable name) becomes an OSError.
    """
    # Pipes and devices are turned away before open(), which may block or ring; the fstat closes the race between.
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise NotRegularError(0, "not a regular file")
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        raise OSError(22, "not a possible file name") from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise NotRegularError(0, "not a regular file")
    return fd, status.st_size


def pread_all(fd: int, length: int, offset: int) -> bytes:
    """Exactly `length` bytes at `offset`, or fewer where the file ends first."""
    data = os.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    # One call returns at most 2 GiB, and fewer on some file systems.
    parts = [data]
    done = len(data)
    while done < length and (data := os.pread(fd, length - done, offset + done)):
        parts.append(data)
        done += len(data)
    return b"".join(parts)


def pread_into(fd: int, view: memoryview, offset: int) -> int:
    """Fill `view` (of bytes) from `offset` on. Returns how many bytes it got: fewer where the file ends first."""
    done = 0
    # One call reads at most 2 GiB, and fewer on some file systems.
    while done < len(view) and (read := os.preadv(fd, [view[done:]], offset + done)):
        done += read
    return done


class PositionedFile(Protocol):
    """A file that is read by position, wherever it lies. Reads give fewer bytes only where the file ends first."""

    @property
    def size(self) -> int:
        """Its length in bytes, as it was when it was opened."""
        ...

    @property
    def identity(self) -> Identity:
        """Which file it is, as it was when it was opened."""
        ...

    def read_at(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes at `offset`."""
        ...

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill `view` from `offset` on, and say how many bytes it got."""
        ...

    def stream(self) -> BinaryIO:
        """The same file for readers that seek; to be closed before the file is."""
        ...

    def close(self) -> None:
        """Give back what holds it open."""
        ...


class LocalFile:
    """A regular file of this machine."""

    def __init__(self, path: str) -> None:
        self._fd, self.size = open_regular(path)
        self.identity = identity_of(os.fstat(self._fd))

    def read_at(self, length: int, offset: int) -> bytes:
        return pread_all(self._fd, length, offset)

    def read_into(self, view: memoryview, offset: int) -> int:
        return pread_into(self._fd, view, offset)

    def stream(self) -> BinaryIO:
        return os.fdopen(self._fd, "rb", closefd=False)

    def close(self) -> None:
        os.close(self._fd)


def open_file(path: str) -> PositionedFile:
    """Open `path` for positioned reads, on this machine or on a hub that is connected. Raises OSError."""
    if not path.startswith(REMOTE):
        return LocalFile(path)
    from blockaudit.checkpoint.hub.repository import open_remote

    return open_remote(path)


def read_capped(path: str, cap: int) -> bytes:
    """The whole of a small regular file. Raises OSError, and ValueError where it is larger than `cap` bytes."""
    with closing(open_file(path)) as file:
        if file.size > cap:
            raise ValueError(f"{file.size:,} bytes, more than the {cap:,} that such a file may have")
        return file.read_at(file.size, 0)


def short(name: str, limit: int = 200) -> str:
    """A name for a message: a header may hold one of a hundred megabytes."""
    return name if len(name) <= limit else f"{name[: limit - 3]}..."


def reason(error: OSError) -> str:
    """Why a file could not be opened, without the path that Python puts into the message."""
    return (error.strerror or str(error)).lower()


def lfs_size(head: bytes) -> int | None:
    """The size that a Git LFS pointer names: None where `head` is no pointer, -1 where it names none."""
    if not head.startswith(LFS_MAGIC):
        return None
    for line in head[:1024].splitlines():
        digits = line.removeprefix(b"size ")
        if digits != line and digits.isdigit() and len(digits) < 20:
            return int(digits)
    return -1


@contextmanager
def gc_paused() -> Generator[None]:
    """No garbage collection inside: it would take a third of the time, over new objects of which none is garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
