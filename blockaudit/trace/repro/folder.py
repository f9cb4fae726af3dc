"""The folder of a repro: what may be there before, and three files that come together."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from blockaudit.errors import RequestError
from blockaudit.trace.repro.script import DATA, MARK

SCRIPT, README = "repro.py", "README.md"
_FILES = frozenset({SCRIPT, README, DATA})


def check(folder: Path) -> None:
    """Refuse, before any work, a folder that holds anything but an earlier repro. Raises RequestError."""
    said = f"--repro {str(folder)!r}"
    try:
        there = sorted(os.listdir(folder))
    except FileNotFoundError:
        if not folder.absolute().parent.is_dir():
            raise RequestError(f"{said}: the folder that it would lie in is not there") from None
        return
    except OSError as error:
        raise RequestError(f"{said}: {error.strerror or error}") from error
    if there and not (_FILES.issuperset(there) and _earlier(folder)):
        raise RequestError(f"{said} is not empty and holds no earlier repro ({there[0]}): name a new folder")


def _earlier(folder: Path) -> bool:
    try:
        return MARK in (folder / SCRIPT).read_text(encoding="utf-8", errors="replace")[:4096]
    except OSError:
        return False


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put the files there, all of them or none. Raises OSError, with nothing left behind."""
    there = folder.is_dir()
    part = folder / f".{os.getpid()}.part" if there else folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        part.mkdir()
        for name, data in files.items():
            (part / name).write_bytes(data)
        if not there:
            part.rename(folder)
            return
        for name in files:
            os.replace(part / name, folder / name)
        part.rmdir()
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        raise
