"""`map list` and `map show`: the library of maps, and one map as data."""

from __future__ import annotations

from typing import Any

import msgspec

from blockaudit import resources
from blockaudit.migrate.load import library, load
from blockaudit.migrate.reverse import reversed_map


def list_maps() -> list[dict[str, Any]]:
    """Every map of the library: `id`, `name`, `source` and `target` manifest, `rules` (how many), `evidence`."""
    found: list[dict[str, Any]] = []
    for name in resources.map_ids():
        map_ = library(name).map
        found.append({
            "id": name, "name": map_.name, "source": map_.source, "target": map_.target, "rules": len(map_.rules),
            "evidence": map_.evidence,
        })  # fmt: skip
    return found


def show_map(name: str, *, reverse: bool = False) -> dict[str, Any]:
    """One map by id or file: `id`, `sha256` of its bytes, and `map` itself. Raises RequestError."""
    loaded = load(name)
    loaded = reversed_map(loaded) if reverse else loaded
    return {"id": loaded.id, "sha256": loaded.sha256, "map": msgspec.to_builtins(loaded.map)}
