"""`python -m docs.generate`: write the reference pages; `--output FOLDER` writes them elsewhere, to be compared."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from blockaudit.cli.rules import markdown
from blockaudit.rules import registry
from docs.generate import commands, library, maps, schemas, specification

PAGES: dict[str, Callable[[], str]] = {
    "cli.md": commands.page,
    "manifests.md": library.page,
    "map-library.md": maps.page,
    "manifest-fields.md": schemas.manifests,
    "rules.md": lambda: markdown(registry.entries()),
    "schemas.md": schemas.documents,
    "specification.md": specification.page,
}


def main() -> None:
    """Write every page."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1], help="default: docs/")
    folder: Path = parser.parse_args().output
    if not folder.is_dir():
        _refuse(f"--output {folder}: expected a folder that is there: make it first")
    for name, page in PAGES.items():
        try:
            (folder / name).write_text(page(), encoding="utf-8")
        except OSError as error:
            _refuse(f"--output {folder}: {name} cannot be written: {error.strerror}")


def _refuse(why: str) -> NoReturn:
    print(f"docs.generate: error: {why}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main()
