"""From a folder that is complete to TARGET: one rename, after which it is there whole, and before which it is not."""

from __future__ import annotations

import ctypes
import errno
import os

# renameat2(2): include/uapi/linux/fs.h, include/uapi/linux/fcntl.h.
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}


def sync(path: str) -> None:
    """Bring a file, or the names in a folder, to the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def publish(folder: str, target: str, durable: bool) -> None:
    """Give a folder its final name. Raises FileExistsError where something has it, OSError for all else."""
    if durable:
        sync(folder)
    _rename(folder, target)
    if durable:
        sync(os.path.dirname(os.path.abspath(target)))


def _rename(folder: str, target: str) -> None:
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is not None:
        renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
        old, new = os.fsencode(folder), os.fsencode(target)
        if renameat2(_AT_FDCWD, old, _AT_FDCWD, new, _RENAME_NOREPLACE) == 0:
            return
        code = ctypes.get_errno()
        if code not in _UNSUPPORTED:
            raise OSError(code, os.strerror(code), target)
    # rename(2) takes the place of nothing but an empty folder.
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
    os.rename(folder, target)
