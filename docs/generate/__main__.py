"""`python -m docs.generate`: write the reference pages; `--output FOLDER` writes them elsewhere, to be compared."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from blockaudit.cli.rules import markdown
from blockaudit.rules import registry
from docs.generate import commands, library, schemas, specification

PAGES: dict[str, Callable[[], str]] = {
    "cli.md": commands.page,
    "manifests.md": library.page,
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
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
