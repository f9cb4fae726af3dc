"""Manifests that a test pins or changes, written beside the checkpoint; cases name them as `{folder}/pinned.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from blockaudit import resources
from blockaudit.cli.main import run
from tests.support.checkpoint import Build, Edit, draft, family, write

PINNED = ("--manifest", "{folder}/pinned.json")


def now(value: Any, pinned: Any, key: str = "x_of_a_later_release") -> dict[str, Any]:
    """A value that was `pinned` when the manifest was drawn up and that config.json (or its default) now gives."""
    return {"config": key, "default": value, "pinned": pinned}


def library(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """A manifest of the library with fields changed by path (`stacks.0.branches.1.reads`)."""
    manifest = json.loads(resources.manifest_path(name).read_text(encoding="utf-8"))
    for path, value in changes.items():
        here: Any = manifest
        *way, last = path.split(".")
        for step in way:
            here = here[int(step)] if isinstance(here, list) else here.setdefault(step, {})
        here[int(last) if isinstance(here, list) else last] = value
    return manifest


def against(name: str, changes: dict[str, Any], *edits: Edit) -> Build:
    """A recorded model, and the family's manifest with these changes as pinned.json beside it."""

    def made(folder: Path) -> Path:
        made_from = draft(name, *edits)
        folder.parent.joinpath("pinned.json").write_text(json.dumps(library(made_from.model_type, changes)))
        return write(made_from, folder)

    return made


def repinned(name: str, *later: Edit) -> Build:
    """A recorded model, pinned by `manifest draft --pin`, and then released again with these edits."""

    def made(folder: Path) -> Path:
        pinned = folder.parent / "pinned.json"
        original = family(name)(folder.parent / "original")
        assert run(["manifest", "draft", str(original), "--level", "headers", "--pin", "--output", str(pinned)]) == 0
        return family(name, *later)(folder)

    return made
