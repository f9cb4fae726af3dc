"""docs/map-library.md: the library of migration maps, and the layouts that they read and write."""

from __future__ import annotations

from collections.abc import Iterable

from blockaudit import resources
from blockaudit.manifest.load import library as manifest
from blockaudit.manifest.show import summary
from blockaudit.migrate.load import library
from docs.generate.text import NOTICE, code, table


def page() -> str:
    """The whole page."""
    lines = ["# The library of maps", "", NOTICE.format(" from `maps/` and `manifests/layouts/`"), ""]
    lines += ["`blockaudit map show ID` prints one; [maps](maps.md) says how one is written and checked.", ""]
    lines += [*_maps(resources.map_ids()), ""]
    lines += ["## Layouts", ""]
    lines += ["Manifests of what other tools write: the block is that of the family, keys and config are theirs.", ""]
    lines += [*_layouts(resources.layout_ids()), ""]
    return "\n".join(lines).rstrip() + "\n"


def _maps(names: Iterable[str]) -> list[str]:
    rows: list[list[str]] = []
    for name in names:
        found = library(name).map
        source = code(found.source) if found.source else "any"
        rows.append([code(name), source, code(found.target), found.evidence])
    return table(["id", "from", "to", "where the layout was read"], rows)


def _layouts(names: Iterable[str]) -> list[str]:
    rows = [[code(name), code(summary(manifest(name).manifest)), manifest(name).manifest.source] for name in names]
    return table(["id", "block", "source"], rows)
