"""What the executed witness said, kept on disk: a second audit of one architecture does not import torch.

An entry speaks only where all is as it was: what was asked (the bound manifest, config.json), the packages installed,
this package's own code, and the contents of every file of transformers that had been imported. Anything else, and any
entry that does not read back whole, is as good as none.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from blockaudit import __version__, kept
from blockaudit.records.bound import BoundManifest
from blockaudit.records.contract import Executed

FORMAT = 1
_LARGEST = 2**26  # bytes of an entry; real ones are tens of kilobytes
# Settings by which transformers chooses between implementations.
_SETTINGS = ("TRANSFORMERS_", "USE_")
# What was imported before this module may have been edited between: its files then tell nothing of the code that runs.
_STARTED, _FOREIGN = time.time(), "transformers" in sys.modules


class _Entry(msgspec.Struct, frozen=True):
    format: int
    key: str
    files: dict[str, str]  # path below the folder of transformers -> digest of the contents
    executed: Executed


def remembered(bound: BoundManifest | None, config: Mapping[str, Any], run: Callable[[], Executed]) -> Executed:
    """What `run` says of a manifest and a config, from the disk where the same code was asked the same before.

    A failure is never kept.
    """
    folder, package = kept.folder("graph"), _package("transformers")
    key = _key(bound, config, package) if folder is not None and package is not None else None
    if folder is None or package is None or key is None:
        return run()
    path = folder / f"{key}.graph"
    found = _read(path, key, package)
    if found is not None:
        return found
    executed = run()
    if executed.failure:
        return executed
    try:
        # Said from memory or from the disk: the same bytes.
        heard = msgspec.msgpack.decode(msgspec.msgpack.encode(executed), type=Executed)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError):
        return executed
    files = _imported(package)
    if files:
        kept.write(path, msgspec.msgpack.encode(_Entry(FORMAT, key, files, heard)))
    return heard


def _package(name: str) -> Path | None:
    """The folder of an installed package, found without importing it."""
    spec = find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


# -- what has to be the same ----------------------------------------------------------------------------------------


def _key(bound: BoundManifest | None, config: Mapping[str, Any], transformers: Path) -> str | None:
    """A digest of all that an answer hangs on and that is known before it is run; None where it cannot be told."""
    torch, own = _package("torch"), Path(__file__).parent
    if torch is None:
        return None
    code = [*sorted(own.rglob("*.py")), *sorted((own.parent / "records").glob("*.py")), torch / "version.py"]
    settings = sorted((k, v) for k, v in os.environ.items() if k.startswith(_SETTINGS))
    try:
        parts = (
            FORMAT, __version__, sys.version, sys.platform, str(transformers), str(torch), settings,
            [_installed(p.parent) for p in (transformers, torch)], [_digest(p) for p in code],
            # Dicts keep their order, for the answer may follow it; a set has none.
            bound and (replace(bound, consumed=frozenset()), sorted(bound.consumed)), config,
        )  # fmt: skip
        return kept.digest(msgspec.msgpack.encode(parts)).hex()
    except (OSError, TypeError, ValueError, OverflowError):
        return None


def _installed(folder: Path) -> list[str]:
    """Names and versions of what lies beside a package: whether another is there decides which code of it runs."""
    return sorted(e for e in os.listdir(folder) if e.endswith((".dist-info", ".egg-info")))


def _digest(path: Path) -> str:
    return kept.digest(path.read_bytes()).hex()


def _imported(package: Path) -> dict[str, str]:
    """Every file of transformers that this process runs; none where one may have changed since it was imported."""
    if _FOREIGN:
        return {}
    found: dict[str, str] = {}
    for path in _files("transformers"):
        try:
            if path.stat().st_mtime > _STARTED:
                return {}
            found[path.relative_to(package).as_posix()] = _digest(path)
        except (OSError, ValueError):
            return {}
    return found


def _files(name: str) -> Iterable[Path]:
    modules = [m for n, m in list(sys.modules.items()) if n.partition(".")[0] == name]
    return sorted({Path(f) for m in modules if isinstance(f := getattr(m, "__file__", None), str)})


# -- entries --------------------------------------------------------------------------------------------------------


def _read(path: Path, key: str, package: Path) -> Executed | None:
    """What an entry says; None where there is none that is whole, of this key, and of the code that lies there now."""
    try:
        entry = msgspec.msgpack.decode(kept.read(path, _LARGEST), type=_Entry)
        if entry.format != FORMAT or entry.key != key or not entry.files:
            return None
        if any(_digest(package / name) != digest for name, digest in entry.files.items()):
            return None
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return entry.executed
