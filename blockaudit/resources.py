"""The one place that knows where `schemas/`, `manifests/` and `maps/` lie.

In a checkout (and an editable install) they are folders at the top of the repository; in a wheel they are shipped
inside the package, under `_data`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from blockaudit.errors import RequestError

_DRAFTED, _FEW = "drafted", 40
_PACKAGE = Path(__file__).resolve().parent


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema called `name` (`report`, `block_manifest`)."""
    import json

    return json.loads(schema_path(name).read_text(encoding="utf-8"))


def schema_path(name: str) -> Path:
    """Where the JSON Schema called `name` lies."""
    return _folder("schemas") / f"{name}.schema.json"


def manifest_ids() -> tuple[str, ...]:
    """Ids of the manifests in the library, sorted."""
    return tuple(sorted(_manifests()))


def handmade_ids() -> tuple[str, ...]:
    """Ids of those of them that were written by hand, sorted."""
    return tuple(sorted(name for name, path in _manifests().items() if path.parent.name != _DRAFTED))


def layout_ids() -> tuple[str, ...]:
    """Ids of the manifests of layouts that other tools write, and that only maps read, sorted."""
    return tuple(sorted(_layouts()))


def manifest_path(manifest_id: str) -> Path:
    """Where the library manifest of that id lies."""
    return _known(manifest_id, _manifests() | _layouts(), "manifest")


def map_ids() -> tuple[str, ...]:
    """Ids of the migration maps in the library, sorted."""
    return tuple(sorted(_maps()))


def map_path(map_id: str) -> Path:
    """Where the library map of that id lies."""
    return _known(map_id, _maps(), "map")


def _known(name: str, known: dict[str, Path], what: str) -> Path:
    """The file of an id. Membership first: an id such as `../x` never becomes a path. Raises RequestError."""
    if name not in known:
        import difflib

        listed = known if len(known) <= _FEW else difflib.get_close_matches(name, known, 5)
        said = ", ".join(sorted(listed)) or ("none" if not known else f"{len(known)}; `{what} list` names them")
        raise RequestError(f"no {what} {name!r} in the library: it has {said}")
    return known[name]


def index_path() -> Path:
    """Where the index lies by which a family is chosen without its manifest being read."""
    return _folder("manifests") / "index" / "signatures.json"


def _manifests() -> dict[str, Path]:
    """Id to file. One that was written by hand stands before one drafted of the same id."""
    folder = _folder("manifests")
    return {p.stem: p for of in (folder / _DRAFTED, folder) for p in of.glob("*.json")}


def _layouts() -> dict[str, Path]:
    return {p.stem: p for p in (_folder("manifests") / "layouts").glob("*.json")}


def _maps() -> dict[str, Path]:
    return {p.stem: p for p in _folder("maps").glob("*.json")}


@cache
def _folder(name: str) -> Path:
    shipped = _PACKAGE / "_data" / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name
