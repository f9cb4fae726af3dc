"""Entries of the user's cache: whole or not there, the user's own, and never more than a help.

The folder is the user's cache folder, or what BLOCKAUDIT_CACHE_DIR names; BLOCKAUDIT_CACHE=off does without. It may be
deleted at any time.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

_OFF = ("off", "0", "no", "false")
_DIGEST = 32


def folder(kind: str) -> Path | None:
    """Where entries of one kind lie; None where nothing is to be kept."""
    if os.environ.get("BLOCKAUDIT_CACHE", "").strip().lower() in _OFF:
        return None
    if named := os.environ.get("BLOCKAUDIT_CACHE_DIR"):
        return Path(named) / kind
    from platformdirs import user_cache_path

    home = user_cache_path("blockaudit", appauthor=False)
    return home / kind if home.is_absolute() else None  # a home that is not known is left as `~`


def digest(data: bytes) -> bytes:
    """The digest that entries are named by, and that each begins with."""
    return blake2b(data, digest_size=_DIGEST).digest()


def read(path: Path, largest: int) -> bytes:
    """What an entry holds. Raises OSError, and ValueError for one that is not as it was written."""
    data = _contents(path, largest)
    if digest(data[_DIGEST:]) != data[:_DIGEST]:
        raise ValueError(f"not whole: {path}")
    return data[_DIGEST:]


def _contents(path: Path, largest: int) -> bytes:
    """An entry's bytes. Raises OSError for what is no file of a fitting size, or a file that another user wrote."""
    # A pipe in an entry's place must not be waited for.
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
        found = os.fstat(file.fileno())
        mine = not hasattr(os, "getuid") or found.st_uid in (0, os.getuid())
        if not stat.S_ISREG(found.st_mode) or found.st_size > largest or not mine:
            raise OSError(f"no entry: {path}")
        return file.read(largest)


def write(path: Path, data: bytes) -> None:
    """Put an entry in its place at once: nobody reads half of one. A folder that cannot be written is let be."""
    from tempfile import NamedTemporaryFile

    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            try:
                file.write(digest(data) + data)
                file.close()
                os.replace(file.name, path)
            except OSError:
                os.unlink(file.name)
