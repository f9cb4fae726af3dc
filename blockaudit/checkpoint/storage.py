"""Where the files of a checkpoint lie: on this machine, or on a hub. What reads them asks here and need not know.

A path that begins with `hf://` names a file of a repository that `connect` has opened, at one commit; every other path
is one of this machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from blockaudit.checkpoint.files import COMMITTED, REMOTE, identity_of
from blockaudit.records.checkpoint import Identity as Identity
from blockaudit.records.checkpoint import Origin

# A path, a first byte and a number of bytes.
Span = tuple[str, int, int]
# Headers and vectors that are fetched from a hub at a time: what it costs is waiting, not work.
WORKERS = 16

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")
_connected: list[str] = []


def is_remote(path: str) -> bool:
    """Whether a path, a folder or a SOURCE is one of a hub."""
    return path.startswith(REMOTE)


def connect(source: str) -> str:
    """Open the repository that an `hf://` SOURCE names, at one commit, and return the folder that it is read under.

    Raises RequestError, one line, where there is none, or none that can be reached.
    """
    from blockaudit.checkpoint.hub.repository import connect as connected

    folder = connected(source)
    _connected.append(folder)
    return folder


def close() -> None:
    """Close the connections to hubs."""
    if not _connected:
        return
    from blockaudit.checkpoint.hub.repository import disconnect

    while _connected:
        disconnect(_connected.pop())


def origin(folder: str) -> Origin | None:
    """The commit of a hub that a folder is, with what has been read of it so far; None for a folder of this machine."""
    if not is_remote(folder):
        return None
    from blockaudit.checkpoint.hub.repository import origin as of_repository

    return of_repository(folder)


def names_in(folder: str) -> list[str]:
    """Names in a folder, sorted. Raises OSError."""
    if not is_remote(folder):
        return sorted(os.listdir(folder))
    from blockaudit.checkpoint.hub.repository import names_in as names_of

    return names_of(folder)


def named(path: str) -> bool:
    """Whether a folder has an entry of this name, were it a link to nothing."""
    return _listed(path) if is_remote(path) else os.path.lexists(path)


def exists(path: str) -> bool:
    """False only for what is certainly not there: a file that may not be read is another fault."""
    if is_remote(path):
        return _listed(path)
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _listed(path: str) -> bool:
    from blockaudit.checkpoint.hub.repository import lists

    return lists(path)


def identity(path: str) -> Identity:
    """What tells that a path names another file now. Raises OSError. A commit is what it is."""
    if is_remote(path):
        return COMMITTED
    return identity_of(os.stat(path))


def fetch_ahead(spans: Sequence[Span]) -> None:
    """Say which bytes are going to be read; those of a hub are fetched now, several at a time."""
    remote = [span for span in spans if is_remote(span[0])]
    if remote:
        from blockaudit.checkpoint.hub.repository import fetch_ahead as fetch

        fetch(remote)


def each(folder: str, call: Callable[[_Item], _Answer], items: Sequence[_Item]) -> list[_Answer]:
    """`call` of every item, in order; for a folder on a hub several at a time."""
    if not is_remote(folder) or len(items) < 2:
        return [call(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(WORKERS, len(items))) as workers:
        # An item that fails cancels those that have not begun.
        return list(workers.map(call, items))
