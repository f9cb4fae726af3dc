"""One chunk in a `.distcp` file: torch.distributed.checkpoint writes each with torch.save, as an archive of its own.

The metadata says where the archive begins. Where the numbers begin in it, its directory and its pickle say.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

from blockaudit.checkpoint.refusal import RefusedError
from blockaudit.checkpoint.state_dict import place
from blockaudit.checkpoint.torch_words import Tensor
from blockaudit.checkpoint.torch_zip import read_zip

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# Fills a view with the bytes of a file from an offset on.
Reader = Callable[[int, memoryview], None]


class ScatteredError(RefusedError):
    """The numbers are there, and not row by row: torch saves a transposed tensor as it lies in memory."""


def start_in(archive: BinaryIO, size: int, key: str, dtype: str, shape: tuple[int, ...]) -> int:
    """The first byte of the numbers in an archive of `size` bytes. Raises RefusedError where it is another tensor."""
    root, locate = read_zip(archive, size)
    if not isinstance(root, Tensor) or (root.dtype, root.size) != (dtype, shape):
        held = f"{root.dtype} {list(root.size)}" if isinstance(root, Tensor) else "no tensor"
        raise RefusedError("corrupt-header", f"{held} is stored where the metadata has {dtype} {list(shape)}")
    header, contiguous = place(key, root, locate)
    if not contiguous:
        raise ScatteredError("corrupt-header", "its numbers do not lie side by side in their storage")
    return header.data_offsets[0]


class Window(io.RawIOBase):
    """Bytes `start` to `start + size` of a file that is read by position, as a file of its own."""

    def __init__(self, read: Reader, start: int, size: int) -> None:
        self._read, self._start, self._size, self._at = read, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(22, "a position before the beginning")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._size - self._at))
        self._read(self._start + self._at, view[:count])
        self._at += count
        return count
