"""A TARGET that is there already: this very conversion, whole, or something that is left alone."""

from __future__ import annotations

import os

import msgspec

from blockaudit.checkpoint.files import read_capped
from blockaudit.checkpoint.hashing import sha256_of_each
from blockaudit.checkpoint.ranges import OpenFiles
from blockaudit.errors import RequestError
from blockaudit.migrate.convert.document import REPORT, Document
from blockaudit.migrate.convert.source import Source
from blockaudit.records.conversion import Conversion, FileRow

_CAP = 1 << 30


def finished(target: str, plan_sha256: str, source: Source) -> Conversion | None:
    """What TARGET says of itself where it is this conversion of this source, proved by the hashes of all files.

    None where there is no TARGET. Raises RequestError where it is something else, or cannot be told to be this.
    """
    if not os.path.lexists(target):
        return None
    found = _report(target)
    if found is None:
        raise RequestError(f"{target}: it is there already, and nothing is written over: name another TARGET")
    if found.plan_sha256 != plan_sha256:
        raise RequestError(
            f"{target}: it is there already, the conversion of another source or by another map: name another TARGET"
        )
    if not found.source.semantic:
        raise RequestError(
            f"{target}: it is there already, and was made without hashes, so that nothing says what of: name another"
        )
    _held(target, found, source)
    return found


def _report(target: str) -> Conversion | None:
    try:
        return msgspec.json.decode(read_capped(os.path.join(target, REPORT), _CAP), type=Document).conversion
    except (OSError, ValueError):
        return None  # no such file, or of something else: msgspec's errors are ValueErrors


def _held(target: str, found: Conversion, source: Source) -> None:
    """Raise RequestError where a file of either end is not what the report says."""
    if {row.name: row.sha256 for row in found.source.files} != _read(source):
        raise RequestError(f"{target}: it is there already, the conversion of another source: name another TARGET")
    written = (*found.target.files, *found.carried, *found.written)
    if any(row.name != os.path.basename(row.name) for row in written):
        raise RequestError(
            f"{target}: it is there already, and its report names files outside of it: name another TARGET"
        )
    paths = [os.path.join(target, row.name) for row in written]
    for path, row in zip(paths, written, strict=True):
        _check_size(target, path, row)
    files = OpenFiles(tuple(paths))
    try:
        hashes = sha256_of_each(files, paths)
    finally:
        files.close()
    for path, row in zip(paths, written, strict=True):
        if hashes[path] != row.sha256:
            raise RequestError(f"{target}: {row.name} in it was changed since it was written: name another TARGET")


def _read(source: Source) -> dict[str, str]:
    """The SHA-256 of every source file, by its name."""
    return {source.names[path]: sha256 for path, sha256 in sha256_of_each(source.files, source.paths).items()}


def _check_size(target: str, path: str, row: FileRow) -> None:
    if not os.path.isfile(path) or os.path.getsize(path) != row.size:
        raise RequestError(f"{target}: it is there already, and {row.name} in it is not whole: name another TARGET")
