"""The container that torch.save wrote before version 1.6: four pickles, the storage keys, then the raw storages."""

from __future__ import annotations

from typing import Any, BinaryIO, cast

from blockaudit.checkpoint.pickle_machine import Machine
from blockaudit.checkpoint.refusal import RefusedError, malformed
from blockaudit.checkpoint.state_dict import Locate
from blockaudit.checkpoint.torch_words import Storage, TorchWords

MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
# The pickled part of a state dict, its raw storages not counted (25 MB for 90,000 tensors); one line of a text opcode.
MAX_PICKLE = 64 * 1024 * 1024
_MAX_LINE = 1 << 20


class Window:
    """A file as genops reads it, except that no opcode gets more than the file has, or than a pickle may have."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._end = min(size, MAX_PICKLE)
        self._at = 0  # counted here: asking the file costs more than reading a byte from it

    def read(self, n: int, /) -> bytes:
        data = self._file.read(min(n, self._end - self._at) if self._at < self._end else 0)
        self._at += len(data)
        return data

    def readline(self) -> bytes:
        data = self._file.readline(_MAX_LINE)
        self._at += len(data)
        return data

    def tell(self) -> int:
        return self._at


def _offsets(file: BinaryIO, position: int, size: int, keys: list[Any], storages: dict[str, Storage]) -> dict[str, int]:
    """First byte of every storage: each is an 8 byte count of elements and its raw data, in the order of the keys."""
    offsets: dict[str, int] = {}
    for key in keys:
        storage = storages.get(key) if isinstance(key, str) else None
        if storage is None or key in offsets:
            raise malformed("its list of storage keys names one that no tensor uses, or one twice")
        need = position + 8 + storage.nbytes
        if need > size:
            raise RefusedError(
                "truncated-file",
                f"the file ends early: {need:,} bytes are needed for the storage {key[:40]}, the file has {size:,}",
                expected=need,
                observed=size,
            )
        file.seek(position)
        count = int.from_bytes(file.read(8), "little", signed=True)
        if count != storage.elements:
            raise RefusedError(
                "corrupt-header",
                f"the storage {key[:40]} should have {storage.elements:,} elements, the file says {count:,}",
                expected=storage.elements,
                observed=count,
            )
        offsets[key] = position + 8
        position = need
    return offsets


def _locator(offsets: dict[str, int]) -> Locate:
    def locate(storage: Storage) -> int:
        if storage.key not in offsets:
            raise RefusedError("corrupt-header", f"the file has no data for the storage {storage.key[:40]}")
        return offsets[storage.key]

    return locate


def read_legacy(file: BinaryIO, size: int) -> tuple[Any, Locate]:
    """The pickled object, and where its storages lie. Raises RefusedError."""
    window = Window(file, size)
    words = TorchWords()
    if Machine(words).run(window) != MAGIC:
        raise RefusedError("unreadable-file", "it is a pickle, and not one that torch.save wrote: save a state dict")
    if Machine(words).run(window) != _PROTOCOL:
        raise malformed("its protocol is not 1001")
    system = Machine(words).run(window)
    if not isinstance(system, dict):
        raise malformed("its third pickle is no dictionary")
    if cast("dict[Any, Any]", system).get("little_endian") is False:
        raise RefusedError("unreadable-file", "it was written on a big-endian machine: save it anew")
    root = Machine(words).run(window)
    keys = Machine(words).run(window)
    if not isinstance(keys, list):
        raise malformed("it has no list of storage keys")
    return root, _locator(_offsets(file, window.tell(), size, cast("list[Any]", keys), words.storages))
