"""docs/manifests.md: the library, family by family."""

from __future__ import annotations

from collections.abc import Iterable

from blockaudit import resources
from blockaudit.manifest.load import library
from blockaudit.manifest.show import summary
from docs.generate.text import NOTICE, code, table


def page() -> str:
    """The whole page."""
    handmade = resources.handmade_ids()
    drafted = [name for name in resources.manifest_ids() if name not in handmade]
    lines = ["# Manifests of the library", "", NOTICE.format(" from `manifests/`"), ""]
    lines += ["`blockaudit manifest show ID` draws one; `--manifest ID` audits against it.", ""]
    lines += ["## Written by hand", "", *_table(handmade), ""]
    lines += [
        "## Drafted from executed graphs",
        "",
        "How, and which others failed: [Drafted manifests](drafted.md).",
        "",
    ]
    lines += [*_table(drafted), ""]
    return "\n".join(lines).rstrip() + "\n"


def _table(names: Iterable[str]) -> list[str]:
    rows: list[list[str]] = []
    for name in names:
        manifest = library(name).manifest
        types = ", ".join(code(one) for one in manifest.match.model_types)
        rows.append([code(name), types, code(summary(manifest))])
    return table(["id", "model types", "block"], rows)
