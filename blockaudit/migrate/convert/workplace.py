"""The folder beside TARGET that a conversion is written in, held by one process at a time.

`.NAME.blockaudit-partial` on TARGET's file system holds a lock, the journal, and in `whole` what becomes TARGET by one
rename. Weights stand there as `*.part`, so that nothing in it loads before it is complete.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from contextlib import suppress
from typing import Self

from blockaudit.errors import RequestError

PART = ".part"
_SUFFIX = ".blockaudit-partial"
_LOCK, _WHOLE = "lock", "whole"
# No room: on the device, in the user's quota, or for a file that large.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Kept free beside the tensors: index, config, tokenizer, reports, and what the file system needs for itself.
_SLACK = 16 << 20


def partial_of(target: str) -> str:
    """The folder in which TARGET is written before it is there."""
    path = os.path.abspath(target)
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)}{_SUFFIX}")


def check_places(source: str, target: str) -> None:
    """Refuse a TARGET that would change SOURCE, or that cannot be made. Raises RequestError."""
    parent = os.path.dirname(os.path.abspath(target))
    if not os.path.basename(os.path.abspath(target)):
        raise RequestError(f"{target}: TARGET is the folder that is to be made: name one")
    if not os.path.isdir(parent):
        raise RequestError(f"{target}: TARGET's folder {parent} is not there: make it first")
    inside, outside = (
        os.path.realpath(os.path.join(parent, os.path.basename(os.path.abspath(target)))),
        os.path.realpath(source),
    )
    if inside == outside:
        raise RequestError(f"{target}: TARGET is SOURCE, where nothing is ever written")
    if os.path.isdir(outside) and _below(outside, inside):
        raise RequestError(f"{target}: TARGET lies in SOURCE, where nothing is ever written")
    if _below(inside, outside):
        raise RequestError(f"{target}: SOURCE lies in TARGET: choose another place for one of them")


def _below(folder: str, path: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def unwritable(target: str, error: OSError) -> RequestError:
    """Why TARGET could not be written, and what to do."""
    if error.errno in FULL:
        return RequestError(
            f"{target}: no room left to write it ({_why(error)}): make room and run the same command again, which "
            f"takes up what stands in {os.path.basename(partial_of(target))}; deleting that folder gives its room back"
        )
    return RequestError(f"{target}: cannot be written: {_why(error)}; TARGET was not made")


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


class Workplace:
    """The folder, made and locked. Raises RequestError where another process works in it, or it cannot be made."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.folder = partial_of(target)
        self.whole = os.path.join(self.folder, _WHOLE)
        try:
            self._lock = self._locked()
            os.makedirs(self.whole, exist_ok=True)
        except OSError as error:
            raise unwritable(target, error) from error

    def path(self, name: str) -> str:
        """Where a file of TARGET stands until then."""
        return os.path.join(self.whole, name)

    def check_room(self, needed: int) -> None:
        """Refuse to begin where the device has less than `needed` bytes in all. Raises RequestError."""
        stands = sum(e.stat().st_blocks * 512 for e in os.scandir(self.whole) if e.is_file(follow_symlinks=False))
        status = os.statvfs(self.whole)
        free = status.f_bavail * status.f_frsize
        missing = needed + _SLACK - stands - free
        if missing > 0:
            raise RequestError(
                f"{self.target}: its device has {free:,} bytes free, and the conversion needs {missing:,} more: "
                f"make room, or choose another device"
            )

    def clear(self) -> None:
        """Forget what an earlier run has written. Raises OSError."""
        shutil.rmtree(self.whole)
        os.makedirs(self.whole)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of it; what stands in it stays."""
        os.close(self._lock)

    def remove(self) -> None:
        """Delete it, the lock last and still held, so that no other process meets half of it.

        What cannot be deleted stays: TARGET is what counts, and the next run that finds it deletes it again.
        """
        with suppress(OSError):
            for entry in os.scandir(self.folder):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                elif entry.name != _LOCK:
                    os.unlink(entry.path)
            os.unlink(os.path.join(self.folder, _LOCK))
            os.rmdir(self.folder)

    def _locked(self) -> int:
        while True:
            if os.path.islink(self.folder):
                raise RequestError(f"{self.target}: {os.path.basename(self.folder)} beside it is a link: delete it")
            os.makedirs(self.folder, exist_ok=True)
            path = os.path.join(self.folder, _LOCK)
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            except FileNotFoundError:
                continue  # the process that held it has just finished
            try:
                self._hold(fd)
                if _is(fd, path):
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def _hold(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise RequestError(
                f"{self.target}: another blockaudit convert (process {pid}) is writing it: wait until that has ended"
            ) from error


def _is(fd: int, path: str) -> bool:
    """Whether a lock is that of the file which has the name now: a process that finishes deletes it."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    held = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)
