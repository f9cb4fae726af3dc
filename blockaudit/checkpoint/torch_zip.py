"""The container that torch.save writes since version 1.6: a zip of one pickle and one uncompressed file per storage."""

from __future__ import annotations

import io
import zipfile
import zlib
from bisect import bisect
from collections import Counter
from struct import error as struct_error
from typing import Any, BinaryIO

from blockaudit.checkpoint.foreign import zip_kind
from blockaudit.checkpoint.pickle_machine import Machine
from blockaudit.checkpoint.refusal import RefusedError, malformed
from blockaudit.checkpoint.state_dict import Locate
from blockaudit.checkpoint.torch_legacy import MAX_PICKLE
from blockaudit.checkpoint.torch_words import Storage, TorchWords

# torch.save does not compress at all; a pickle that others compressed shrinks by 30 at the most, and a bomb by 1000.
_MAX_RATIO = 100
_LOCAL_HEADER = 30


def _refuse(what: str, remedy: str) -> RefusedError:
    return RefusedError("unreadable-file", f"this is {what}: {remedy}")


def _check_kind(names: list[str]) -> None:
    """Zip archives that are something else than a state dict, told by the names of their entries."""
    kind = zip_kind(names)
    if kind is not None:
        raise _refuse(*kind)


def _prefix(names: list[str]) -> str:
    """`archive/` of archive/data.pkl."""
    found = [name for name in names if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(found) != 1:
        raise RefusedError(
            "unreadable-file", f"a zip with {len(found)} entries named data.pkl is no PyTorch state dict"
        )
    return found[0].removesuffix("data.pkl")


class _Archive:
    """An open archive: its pickle, and the absolute offsets of its storages."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size = file, size
        self.zip = zipfile.ZipFile(file)
        self.entries = self.zip.infolist()
        names = [entry.filename for entry in self.entries]
        _check_kind(names)
        self.prefix = _prefix(names)
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise RefusedError("corrupt-header", f"the zip has two entries named {twice[0][:80]}")
        self.by_name = {entry.filename: entry for entry in self.entries}

    def small(self, name: str, limit: int) -> bytes:
        """The content of one entry, checked against its checksum, of at most `limit` bytes."""
        entry = self.by_name[self.prefix + name]
        if entry.file_size > min(limit, entry.compress_size * _MAX_RATIO):
            raise RefusedError(
                "unreadable-file", f"its {name} claims {entry.file_size:,} bytes, more than can be right"
            )
        with self.zip.open(entry) as stream:
            return stream.read(entry.file_size + 1)

    def offset(self, entry: zipfile.ZipInfo) -> int:
        """First byte of an entry's data: only its local header knows, padded as it is."""
        self.file.seek(entry.header_offset)
        header = self.file.read(_LOCAL_HEADER)
        if len(header) < _LOCAL_HEADER or header[:4] != b"PK\x03\x04":
            raise RefusedError("corrupt-header", f"the zip entry {entry.filename[:80]} has no local header")
        names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        return entry.header_offset + _LOCAL_HEADER + names

    def locate(self, storage: Storage) -> int:
        entry = self.by_name.get(f"{self.prefix}data/{storage.key}")
        if entry is None:
            raise RefusedError("corrupt-header", f"the zip has no data for the storage {storage.key[:40]}")
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size or entry.flag_bits & 1:
            raise RefusedError("unreadable-file", "its tensors are compressed: save it anew with torch.save")
        if entry.file_size < storage.nbytes:
            raise RefusedError(
                "corrupt-header",
                f"the storage {storage.key[:40]} needs {storage.nbytes:,} bytes, the zip has {entry.file_size:,}",
                expected=storage.nbytes,
                observed=entry.file_size,
            )
        start = self.offset(entry)
        if start + storage.nbytes > self.size:
            raise RefusedError(
                "truncated-file", "the file ends early", expected=start + storage.nbytes, observed=self.size
            )
        return start


def _once(locate: Locate) -> Locate:
    """Each storage is located once, and no two may share bytes: entries of a hostile archive can point at one place."""
    known: dict[str, int] = {}
    spans: list[tuple[int, int, str]] = []

    def once(storage: Storage) -> int:
        if storage.key not in known:
            start = known[storage.key] = locate(storage)
            span = (start, start + storage.nbytes, storage.key)
            at = bisect(spans, span)
            for other in spans[max(at - 1, 0) : at + 1]:
                if other[0] < span[1] and start < other[1]:
                    text = f"the storages {other[2][:40]} and {storage.key[:40]} lie in the same bytes of the zip"
                    raise RefusedError("overlapping-tensors", text)
            if storage.nbytes:
                spans.insert(at, span)
        return known[storage.key]

    return once


def _read(file: BinaryIO, size: int) -> tuple[Any, Locate]:
    archive = _Archive(file, size)
    if archive.prefix + "byteorder" in archive.by_name and archive.small("byteorder", 64) != b"little":
        raise _refuse("a file from a big-endian machine", "save it anew")
    root = Machine(TorchWords()).run(io.BytesIO(archive.small("data.pkl", MAX_PICKLE)))
    return root, _once(archive.locate)


def read_zip(file: BinaryIO, size: int) -> tuple[Any, Locate]:
    """The pickled object, and where its storages lie (`file` must stay open for that). Raises RefusedError."""
    try:
        return _read(file, size)
    except zipfile.BadZipFile as error:
        if "not a zip file" not in str(error):
            raise RefusedError("unreadable-file", f"its zip archive is damaged: {str(error)[:120]}") from error
        raise RefusedError(
            "truncated-file",
            f"the file ends early: the directory at the end of its zip archive is missing ({size:,} bytes are there)",
            observed=size,
        ) from error
    except (ValueError, NotImplementedError, RuntimeError, EOFError, OverflowError, struct_error, zlib.error) as error:
        raise malformed(f"its zip archive is damaged: {str(error)[:120]}") from error
