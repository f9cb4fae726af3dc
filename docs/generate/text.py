"""Text as markdown shows it as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NOTICE = "Written by `make reference`{}; do not edit. A test holds it current."


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table; its cells are markdown."""
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    # A bar ends a cell, within code as well.
    return f"| {' | '.join(' '.join(cell.replace('|', chr(92) + '|').split()) for cell in cells)} |"


def prose(text: str) -> str:
    """A sentence: what it marks as code stays code, and nothing else of it is markup."""
    parts = text.split("`")
    return "`".join(part if at % 2 else _plain(part) for at, part in enumerate(parts))


def _plain(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\*_<>[]" else c for c in text)


def code(text: str) -> str:
    """A name."""
    return f"`{text}`"
