"""`--by-folder`: from files that changed to the checkpoints that they belong to, for hooks and `git diff`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from blockaudit.cli import output

# What a folder that holds a checkpoint has at least one of; a config.json alone may be anybody's.
_WEIGHTS = (".safetensors", ".index.json", ".bin", ".pt", ".pth", ".gguf", ".distcp")

ByFolder = Annotated[
    bool,
    typer.Option(
        "--by-folder",
        help="Of every SOURCE that is a file, audit the folder that it lies in, each once; folders without weights are "
        "passed over. For hooks.",
    ),
]


def folders_of(sources: Sequence[str]) -> list[str]:
    """The folders of `sources`, each once, in order; whatever is no file (a folder, `hf://`) stays as it is."""
    found: dict[str, None] = {}
    for source in sources:
        folder = _folder(source)
        if folder is None:
            found[source] = None
        elif _holds_weights(folder):
            found[os.path.normpath(folder)] = None
        else:
            output.remark(f"{source}: no weights in its folder: nothing to audit")
    return list(found)


def _folder(source: str) -> Path | None:
    """Where a file lies, also one that is gone; None for a SOURCE of its own."""
    path = Path(source)
    if "://" in source or path.is_dir() or not path.parent.is_dir():
        return None
    return path.parent


def _holds_weights(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(entry.name.endswith(_WEIGHTS) for entry in entries)
