"""The header of one safetensors file, read and validated by ourselves: length, JSON, types, byte ranges."""

from __future__ import annotations

from contextlib import closing

from blockaudit.checkpoint.files import PositionedFile, gc_paused, lfs_size, open_file, reason, short
from blockaudit.checkpoint.header_text import parse_header
from blockaudit.checkpoint.jsontext import BadJsonError
from blockaudit.checkpoint.layout import check_layout
from blockaudit.records.checkpoint import Fault, FileHeader

# The limit of the format itself.
MAX_HEADER = 100_000_000
_PREFIX = 8
_KINDS = (
    (b"PK\x03\x04", "a zip archive, such as torch.save writes"),
    (b"\x80\x02", "a pickle, such as torch.save wrote before version 1.6"),
    (b"GGUF", "a GGUF file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"<!DOCTYPE", "an HTML page, perhaps an error page that was saved in place of the file"),
    (b"<html", "an HTML page, perhaps an error page that was saved in place of the file"),
)


def unread(path: str, name: str, size: int, container: str) -> FileHeader:
    """The record of a file whose header could not be understood: its keys are unknown, not absent."""
    return FileHeader(name, path, size, container, 0, {}, readable=False)


def lfs_fault(name: str, named: int, size: int) -> Fault:
    """A Git LFS pointer where a weight file should be. `named` is the size that it names in bytes, -1 if none."""
    stands_for = f"a file of {named:,} bytes" if named >= 0 else "a file"
    return Fault(
        "lfs-pointer",
        name,
        f"this is a Git LFS pointer of {size:,} bytes that stands for {stands_for}; fetch it with `git lfs pull`",
        expected=named if named >= 0 else None,
        observed=size,
    )


def _foreign(head: bytes) -> str:
    for magic, what in _KINDS:
        if head.startswith(magic):
            return f"; its content is {what}"
    return ""


def _prefix_fault(head: bytes, name: str, size: int) -> Fault | None:
    """What is wrong with the first eight bytes, the length of the header."""
    named = lfs_size(head)
    if named is not None:
        return lfs_fault(name, named, size)
    if size < _PREFIX:
        return Fault(
            "truncated-file",
            name,
            f"the file has {size} bytes, fewer than the {_PREFIX} that hold the length of its header",
            expected=_PREFIX,
            observed=size,
        )
    length = int.from_bytes(head[:_PREFIX], "little")
    if length > MAX_HEADER or (length + _PREFIX > size and head[_PREFIX : _PREFIX + 1] != b"{"):
        limit = f"the file's {size:,}" if length + _PREFIX > size else f"the format's limit of {MAX_HEADER:,}"
        return Fault(
            "corrupt-header",
            name,
            f"not a safetensors header: its length reads as {length:,} bytes, more than {limit}{_foreign(head)}",
            expected=min(MAX_HEADER, size - _PREFIX),
            observed=length,
        )
    if length + _PREFIX > size:
        return Fault(
            "truncated-file",
            name,
            f"the file ends inside its header: {length + _PREFIX:,} bytes are needed, the file has {size:,}",
            expected=length + _PREFIX,
            observed=size,
        )
    if head[_PREFIX : _PREFIX + 1] != b"{":
        return Fault("corrupt-header", name, f"the header does not start with an opening brace{_foreign(head)}")
    return None


def _read(file: PositionedFile, path: str, name: str) -> tuple[FileHeader, list[Fault]]:
    size = file.size
    head = file.read_at(min(size, 1024), 0)
    fault = _prefix_fault(head, name, size)
    if fault is not None:
        return unread(path, name, size, "safetensors"), [fault]
    length = int.from_bytes(head[:_PREFIX], "little")
    whole = _PREFIX + length <= len(head)
    raw = head[_PREFIX : _PREFIX + length] if whole else file.read_at(length, _PREFIX)
    start = _PREFIX + length
    try:
        with gc_paused():
            text = parse_header(raw)
    except BadJsonError as error:
        fault = Fault("corrupt-header", name, f"the header cannot be read: {error}")
        return unread(path, name, size, "safetensors"), [fault]
    faults: list[Fault] = []
    entries = list(text.tensors.items())
    if text.repeated:
        keys = tuple(dict.fromkeys(key for key, _ in text.repeated))
        faults.append(
            Fault("duplicate-key", name, f"the header names {short(keys[0])} more than once; the last one counts", keys)
        )
        # The bytes of a replaced entry are not a hole: the double name is the fault.
        entries.extend(pair for pair in text.repeated if text.tensors[pair[0]] != pair[1])
    faults.extend(check_layout(entries, name, start, size - start))
    return FileHeader(
        name, path, size, "safetensors", start, text.tensors, text.metadata, identity=file.identity
    ), faults


def read_header(path: str, name: str) -> tuple[FileHeader, list[Fault]]:
    """Read the header of the safetensors file at `path`, reported as `name`; whatever is wrong with it is a fault.

    Never raises for what the file holds, and holds no more of it in memory than its header. `readable` is false where
    the keys could not be read; tensors that contradict themselves are kept, with their fault.
    """
    size = 0
    try:
        with closing(open_file(path)) as file:
            size = file.size
            return _read(file, path, name)
    except OSError as error:
        fault = Fault("unreadable-file", name, f"cannot be read: {reason(error)}")
        return unread(path, name, size, "safetensors"), [fault]
