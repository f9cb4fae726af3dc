"""Bytes from one file into another, by the shortest way that the system offers."""

from __future__ import annotations

import errno
import os

# Bytes of one call: few enough that an interrupt is heard.
_MOST = 256 << 20
_CHUNK = 4 << 20
# No such call, not for these two files (other file systems, an old kernel, a FUSE mount), or not for these offsets.
_ELSEWHERE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM, errno.ETXTBSY}


def write_all(fd: int, data: memoryview | bytes, offset: int) -> None:
    """Write all of `data` at `offset`. Raises OSError."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done : done + (1 << 30)], offset + done)


def copy_range(source: int, start: int, target: int, offset: int, nbytes: int) -> int:
    """Copy bytes inside the kernel, or through a buffer where it cannot. Returns how many: less where the source ends.

    Descriptors, and first bytes in each. Where the file system has reflinks and both offsets lie on its blocks,
    copy_file_range(2) shares them by itself. Raises OSError.
    """
    done = 0
    while done < nbytes:
        try:
            got = os.copy_file_range(source, target, min(nbytes - done, _MOST), start + done, offset + done)
        except OSError as error:
            if error.errno not in _ELSEWHERE:
                raise
            return done + _through(source, start + done, target, offset + done, nbytes - done)
        if not got:
            # Some file systems say 0 for what they cannot do (a file of /proc), and 0 at the end of the file.
            return done + _through(source, start + done, target, offset + done, nbytes - done)
        done += got
    return done


def _through(source: int, start: int, target: int, offset: int, nbytes: int) -> int:
    buffer = memoryview(bytearray(min(_CHUNK, nbytes)))
    done = 0
    while done < nbytes and (got := os.preadv(source, [buffer[: nbytes - done]], start + done)):
        write_all(target, buffer[:got], offset + done)
        done += got
    return done
