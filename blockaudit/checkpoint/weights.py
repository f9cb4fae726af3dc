"""One weight file, whatever its container: told apart by its first bytes, and by its name where they say nothing."""

from __future__ import annotations

import os
from contextlib import closing

from blockaudit.checkpoint import foreign
from blockaudit.checkpoint.files import lfs_size, open_file, reason
from blockaudit.checkpoint.header import lfs_fault, read_header, unread
from blockaudit.records.checkpoint import Fault, FileHeader

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
WEIGHT_SUFFIXES = (".safetensors", *PICKLE_SUFFIXES)


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _is_safetensors(head: bytes, size: int) -> bool:
    return len(head) > 8 and int.from_bytes(head[:8], "little") + 8 <= size and head[8:9] == b"{"


def _sniff(head: bytes, size: int, name: str) -> str:
    """safetensors, zip, pickle, tar, lfs or nothing."""
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "pickle"
    if lfs_size(head) is not None:
        return "lfs"
    if _suffix(name) == ".safetensors" or _is_safetensors(head, size):
        return "safetensors"
    return "tar" if head[257:262] == b"ustar" else ""


def _foreign(head: bytes, name: str) -> Fault | None:
    known = foreign.by_bytes(head) or foreign.by_name(name)
    return foreign.refusal(name, *known) if known else None


def _read_lfs(head: bytes, path: str, name: str, size: int) -> tuple[FileHeader, list[Fault]]:
    return unread(path, name, size, _container(name)), [lfs_fault(name, lfs_size(head) or -1, size)]


def _container(name: str) -> str:
    return "safetensors" if _suffix(name) == ".safetensors" else "torch-zip"


def _unknown(head: bytes, name: str, size: int) -> Fault:
    if size == 0:
        return Fault("truncated-file", name, "the file is empty", observed=0)
    if head[257:262] == b"ustar":
        return foreign.refusal(
            name, "a tar archive, as PyTorch wrote before 0.1.10", "load it there and save its state dict anew"
        )
    return Fault(
        "unreadable-file", name, f"its first bytes ({head[:8].hex(' ')}) are those of no format; {foreign.READS}"
    )


def read_weights(path: str, name: str) -> tuple[FileHeader, list[Fault]]:
    """Read the header of one weight file of any container, reported as `name`. Everything wrong with it is a fault."""
    size = 0
    try:
        with closing(open_file(path)) as file:
            size = file.size
            head = file.read_at(1024, 0)
    except OSError as error:
        fault = Fault("unreadable-file", name, f"cannot be read: {reason(error)}")
        return unread(path, name, size, _container(name)), [fault]
    fault = _foreign(head, name)
    if fault is not None:
        return unread(path, name, size, _container(name)), [fault]
    kind = _sniff(head, size, name)
    if kind == "lfs":
        return _read_lfs(head, path, name, size)
    if not kind and size and _suffix(name) in PICKLE_SUFFIXES:
        kind = "pickle"  # of a protocol without magic bytes: if it is one, what it asks for is worth naming
    if kind in ("zip", "pickle") and _suffix(name) != ".safetensors":
        from blockaudit.checkpoint.pickle_reader import read_pickle  # only pickles pay for zipfile and pickletools

        return read_pickle(path, name)
    if kind == "safetensors" or _suffix(name) == ".safetensors":
        return read_header(path, name)
    return unread(path, name, size, _container(name)), [_unknown(head, name, size)]


def looks_like_weights(path: str) -> bool:
    """Whether a file with a name that says nothing holds weights by its first bytes."""
    try:
        with closing(open_file(path)) as file:
            size, head = file.size, file.read_at(1024, 0)
    except OSError:
        return False
    return _sniff(head, size, path) != "" or foreign.by_bytes(head) is not None
