"""A drawing on a grid of character cells: shapes, and the lines between them. x counts columns, y rows, both from 0."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from blockaudit.report.escape import escape
from blockaudit.report.layout import cells

# A box has a border, a norm and a factor are one line, a sum is one cell, a text is only itself, a frame encloses.
ShapeKind = Literal["box", "norm", "factor", "sum", "text", "head", "frame"]
# What a label may take: two boxes beside each other and the line past them fit a page of 100 columns.
LONGEST = 34
# What a title, a contract name or a condition may take.
LONG = 300


@dataclass(frozen=True, slots=True)
class Shape:
    """One thing drawn: its upper left cell, its size in cells, its lines; `site` is the contract's name of it."""

    kind: ShapeKind
    x: int
    y: int
    width: int
    height: int
    lines: tuple[str, ...] = ()
    site: str = ""

    @property
    def middle(self) -> int:
        """The column of its centre."""
        return self.x + self.width // 2

    @property
    def bottom(self) -> int:
        """Its last row."""
        return self.y + self.height - 1


@dataclass(frozen=True, slots=True)
class Line:
    """One line, corner by corner, each a cell. `stream`: part of the residual stream. `arrow`: it ends in a head."""

    points: tuple[tuple[int, int], ...]
    stream: bool = False
    arrow: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """All shapes and lines, enclosing ones first. `words` says the same as the picture, a sentence a line."""

    title: str
    words: tuple[str, ...]
    width: int
    height: int
    shapes: tuple[Shape, ...]
    lines: tuple[Line, ...]


def label(text: str, longest: int = LONGEST) -> str:
    """A name that can be drawn: escaped, and its middle left out where it is longer than a label may be."""
    text = escape(text)
    if cells(text) <= longest:
        return text
    half = (longest - 3) // 2
    while cells(text[:half]) + cells(text[-half:]) + 3 > longest:
        half -= 1
    return f"{text[:half]}...{text[-half:]}"


def shape(kind: ShapeKind, lines: Iterable[str], middle: int, y: int, site: str = "") -> Shape:
    """A shape around its lines, centred on a column: its width is odd, so that a line meets its middle."""
    said = tuple(lines)
    around = {"box": 4, "norm": 4, "factor": 2}.get(kind, 0)
    width = (max(map(cells, said)) + around) | 1
    return Shape(kind, middle - width // 2, y, width, len(said) + (2 if kind == "box" else 0), said, label(site, LONG))


def moved(drawing: Drawing, x: int, y: int) -> Drawing:
    """The same drawing elsewhere."""
    return replace(
        drawing,
        shapes=tuple(replace(s, x=s.x + x, y=s.y + y) for s in drawing.shapes),
        lines=tuple(replace(e, points=tuple((a + x, b + y) for a, b in e.points)) for e in drawing.lines),
    )


def fitted(title: str, words: tuple[str, ...], shapes: list[Shape], lines: list[Line]) -> Drawing:
    """A drawing with its upper left corner at the origin."""
    left, top = min(s.x for s in shapes), min(s.y for s in shapes)
    width = max(s.x + s.width for s in shapes) - left
    height = max(s.y + s.height for s in shapes) - top
    ordered = sorted(shapes, key=lambda s: s.kind != "frame")
    return moved(Drawing(title, words, width, height, tuple(ordered), tuple(lines)), -left, -top)
