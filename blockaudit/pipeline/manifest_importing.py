"""`manifest import`: another tool's description of an architecture, as a block manifest that claims no more than it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockaudit.manifest.draft import Draft


def import_manifest(path: str) -> Draft:
    """The manifest of a mergekit architecture file (JSON or YAML), with a remark for everything that it leaves open.

    Raises RequestError where the file is none.
    """
    from blockaudit.manifest.importing import from_mergekit

    return from_mergekit(path)
