"""A drawing in box-drawing characters, for a terminal and for a diff."""

from __future__ import annotations

from blockaudit.report.layout import cells, pad
from blockaudit.report.wiring.shapes import Drawing, Line, Shape

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
# By the sides on which a cell is met.
_JOINS = " │││─╯╮┤─╰╭├─┴┬┼"
_CORNERS = {_DOWN | _RIGHT: "┌", _DOWN | _LEFT: "┐", _UP | _RIGHT: "└", _UP | _LEFT: "┘"}
_PLAIN = str.maketrans("│─╯╮┤╰╭├┴┬┼┌┐└┘╌╎◀▶⊕\u00d7", "|-'.+'.++++++++-:<>+x")


def render(drawing: Drawing, ascii_only: bool = False) -> str:
    """The drawing, a line each row; `ascii_only` for an output that has no other characters."""
    grid = _Grid(drawing.width, drawing.height)
    for line in drawing.lines:
        grid.line(line)
    for shape in drawing.shapes:
        if shape.kind == "frame":
            grid.frame(shape)
        else:
            grid.shape(shape)
    text = "".join(f"{row}\n" for row in grid.rows())
    return text.translate(_PLAIN) if ascii_only else text


class _Grid:
    """Cells: what is written in each, else the sides on which lines meet it."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.sides = [[0] * width for _ in range(height)]
        self.written: dict[tuple[int, int], str] = {}

    def rows(self) -> list[str]:
        return ["".join(self._cell(x, y) for x in range(self.width)).rstrip() for y in range(self.height)]

    def _cell(self, x: int, y: int) -> str:
        written = self.written.get((x, y))
        return _JOINS[self.sides[y][x]] if written is None else written

    def line(self, line: Line) -> None:
        for (ax, ay), (bx, by) in zip(line.points, line.points[1:], strict=False):
            self._join(ax, ay, bx, by)
        if line.arrow:
            # The head stands on the cell before the one that it points to.
            (ax, ay), (bx, by) = line.points[-2:]
            step = (bx > ax) - (bx < ax)
            self.written[(bx - step, by)] = "▶" if step > 0 else "◀"

    def _join(self, ax: int, ay: int, bx: int, by: int) -> None:
        if ay == by:
            low, high = sorted((ax, bx))
            for x in range(low, high + 1):
                self.sides[ay][x] |= (_RIGHT if x < high else 0) | (_LEFT if x > low else 0)
        else:
            low, high = sorted((ay, by))
            for y in range(low, high + 1):
                self.sides[y][ax] |= (_DOWN if y < high else 0) | (_UP if y > low else 0)

    def frame(self, shape: Shape) -> None:
        """A dashed border; lines that cross it go on."""
        right, bottom = shape.x + shape.width - 1, shape.bottom
        for x in range(shape.x, right + 1):
            for y in (shape.y, bottom):
                self._dash(x, y, "╌")
        for y in range(shape.y + 1, bottom):
            for x in (shape.x, right):
                self._dash(x, y, "╎")

    def _dash(self, x: int, y: int, mark: str) -> None:
        if not self.sides[y][x]:
            self.written.setdefault((x, y), mark)

    def shape(self, shape: Shape) -> None:
        match shape.kind:
            case "box":
                self._box(shape)
            case "norm":
                self._write(shape.x, shape.y, f"( {pad(shape.lines[0], shape.width - 4)} )")
            case "factor":
                self._write(shape.x, shape.y, f" {pad(shape.lines[0], shape.width - 2)} ")
            case "sum":
                self._write(shape.x, shape.y, "⊕" if shape.lines == ("+",) else shape.lines[0])
            case _:
                self._write(shape.x, shape.y, shape.lines[0])

    def _box(self, shape: Shape) -> None:
        right, bottom = shape.x + shape.width - 1, shape.bottom
        for a, b in (((shape.x, shape.y), (right, shape.y)), ((shape.x, bottom), (right, bottom))):
            self._join(*a, *b)
        for x in (shape.x, right):
            self._join(x, shape.y, x, bottom)
        for x, y in ((shape.x, shape.y), (right, shape.y), (shape.x, bottom), (right, bottom)):
            self.written[(x, y)] = _CORNERS.get(self.sides[y][x], "┼")
        for row, text in enumerate(shape.lines, 1):
            left = (shape.width - 4 - cells(text)) // 2
            self._write(shape.x + 1, shape.y + row, pad(" " * (left + 1) + text, shape.width - 2))

    def _write(self, x: int, y: int, text: str) -> None:
        """A text, cell by cell: a wide character takes the next cell too, a combining mark the one before it."""
        for character in text:
            width = cells(character)
            if width == 0 and (x - 1, y) in self.written:
                self.written[(x - 1, y)] += character
                continue
            self.written[(x, y)] = character
            if width == 2:
                self.written[(x + 1, y)] = ""
            x += width
