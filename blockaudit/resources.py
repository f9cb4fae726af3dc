"""The one place that knows where `schemas/` and `manifests/` lie.

In a checkout (and an editable install) they are folders at the top of the repository; in a wheel they are shipped
inside the package, under `_data`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from blockaudit.errors import RequestError

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
    return tuple(sorted(path.stem for path in _folder("manifests").glob("*.json")))


def manifest_path(manifest_id: str) -> Path:
    """Where the library manifest of that id lies."""
    # Membership first: an id such as `../x` never becomes a path.
    if manifest_id not in manifest_ids():
        raise RequestError(f"no manifest {manifest_id!r} in the library: it has {', '.join(manifest_ids()) or 'none'}")
    return _folder("manifests") / f"{manifest_id}.json"


@cache
def _folder(name: str) -> Path:
    shipped = _PACKAGE / "_data" / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name
