"""Lines made of styled spans, and the two ways to paint them.

The layout is the same with and without colour, so it is written once. Colour is a handful of SGR codes rather than a
console library: that would cost a third of a small audit's time, and would want to interpret the names it is given.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterable, Sequence

Span = tuple[str, str]  # text, style (a key of _SGR, or "")
Line = tuple[Span, ...]

_SGR = {
    "good": "1;32",
    "bad": "1;31",
    "warn": "1;33",
    "note": "1;36",
    "head": "1",
    "dim": "2",
}


def paint(lines: Iterable[Line], color: bool) -> str:
    """All lines as text, each ended by a newline."""
    return "".join(_paint(line, color) + "\n" for line in lines)


def _paint(line: Line, color: bool) -> str:
    if not color:
        return "".join(text for text, _ in line).rstrip()
    return "".join(f"\x1b[{_SGR[style]}m{text}\x1b[0m" if style and text.strip() else text for text, style in line)


def cells(text: str) -> int:
    """Terminal columns that `text` takes: East Asian wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def pad(text: str, width: int) -> str:
    """`text` filled with spaces to `width` columns."""
    return text + " " * (width - cells(text))


def cut(text: str, width: int) -> str:
    """`text` if it fits, else its beginning and `...`."""
    if cells(text) <= width:
        return text
    kept = text[: width - 3]
    while cells(kept) > width - 3:
        kept = kept[:-1]
    return kept + "..."


def wrapped(label: str, text: str, width: int, style: str = "") -> list[Line]:
    """`label` and then `text`, wrapped under itself; a word longer than the line is left whole, to be copied."""
    body = textwrap.wrap(text, max(width - len(label), 20), break_long_words=False, break_on_hyphens=False) or [""]
    return [((label if i == 0 else " " * len(label), "dim"), (part, style)) for i, part in enumerate(body)]


def table(rows: Sequence[Sequence[Span]], gap: int = 2) -> list[Line]:
    """Cells aligned in columns; the last column is left ragged."""
    widths = [max(cells(row[i][0]) for row in rows) for i in range(len(rows[0]) - 1)]
    return [
        (*((pad(text, w + gap), style) for (text, style), w in zip(row[:-1], widths, strict=True)), row[-1])
        for row in rows
    ]
