"""A drawing as SVG: one file, no scripts, no fonts of its own, light or dark as its reader is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from html import escape as quoted

from blockaudit.report.layout import cells
from blockaudit.report.wiring.shapes import Drawing, Line, Shape

# Pixels of a cell, of the margin, of the head of an arrow, and the radius of a sum.
_WIDE, _HIGH, _MARGIN, _HEAD, _SUM = 8, 20, 16, 8, 10
# A line of letters, in pixels from the middle of its row to its baseline; half the height of a norm's pill.
_BASELINE, _PILL = 4.5, 13
# Colours: (selector, light, dark). Every class begins with `bw-`, so that the picture may stand inside a page.
_COLOURS = (
    (".bw-ground", "fill:#ffffff", "fill:#0f1419"),
    (".bw-frame", "fill:#f6f7f9;stroke:#c3cad4", "fill:#171d24;stroke:#3b4654"),
    (".bw-line", "stroke:#6b7686", "stroke:#8795a8"),
    (".bw-stream", "stroke:#1f2937", "stroke:#e5e9f0"),
    (".bw-head", "fill:#6b7686", "fill:#8795a8"),
    (".bw-box rect", "fill:#e3edfb;stroke:#4a7fc1", "fill:#1c3049;stroke:#6fa3e0"),
    (".bw-norm rect", "fill:#fdf0d5;stroke:#c08a1e", "fill:#3b2f14;stroke:#dba94a"),
    (".bw-factor rect", "fill:#efe6fa;stroke:#8a63c4", "fill:#2e2342;stroke:#b295e0"),
    (".bw-sum circle", "fill:#ffffff;stroke:#1f2937", "fill:#0f1419;stroke:#e5e9f0"),
    (".bw-sum path", "stroke:#1f2937", "stroke:#e5e9f0"),
    ("text", "fill:#1f2937", "fill:#e5e9f0"),
    (".bw-text text,.bw-more", "fill:#5a6575", "fill:#a3afbf"),
)
_FIXED = (
    ("text", "font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;text-anchor:middle"),
    (".bw-left", "text-anchor:start"),
    (".bw-title text", "font-weight:600;font-size:15px"),
    ("rect,circle", "stroke-width:1.5"),
    (".bw-line", "fill:none;stroke-width:1.5"),
    (".bw-stream", "fill:none;stroke-width:2.5"),
    (".bw-frame", "stroke-dasharray:5 4"),
    (".bw-sum path", "fill:none;stroke-width:2"),
)


def render(drawing: Drawing, marked: Collection[str] = (), styled: bool = True) -> str:
    """The drawing as one SVG document.

    styled: with its own colours; a page that shows several has `style()` once. marked: sites that bear the class
    `bw-odd`, which is the page's to paint.
    """
    width, height = drawing.width * _WIDE + 2 * _MARGIN, drawing.height * _HIGH + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="bw" role="img" width="{width}" height="{height}"'
        f' viewBox="{-_MARGIN} {-_MARGIN} {width} {height}">',
        "<!-- drawn by blockaudit -->",
        f"<title>{quoted(drawing.title)}</title>",
        f"<desc>{quoted('. '.join(drawing.words))}</desc>",
        *([f"<style>{style()}</style>"] if styled else []),
        f'<rect class="bw-ground" x="{-_MARGIN}" y="{-_MARGIN}" width="{width}" height="{height}"/>',
        *(_frame(s) for s in drawing.shapes if s.kind == "frame"),
        # The stream lies above what leaves it and what is added to it.
        *(_line(e, drawing.shapes) for e in sorted(drawing.lines, key=lambda e: e.stream)),
        *(_shape(s, s.site in marked) for s in drawing.shapes if s.kind != "frame"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def style() -> str:
    """The colours of every drawing, light and dark."""
    light = [(selector, said) for selector, said, _ in _COLOURS]
    dark = [(selector, said) for selector, _, said in _COLOURS]
    return f"{_sheet(_FIXED)} {_sheet(light)} @media (prefers-color-scheme:dark){{{_sheet(dark)}}}"


def _sheet(rules: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"{_scoped(selector)}{{{said}}}" for selector, said in rules)


def _scoped(selector: str) -> str:
    return ",".join(f".bw {one}" for one in selector.split(","))


def _centre(x: int, y: int) -> tuple[int, int]:
    """Pixels of the middle of a cell."""
    return x * _WIDE + _WIDE // 2, y * _HIGH + _HIGH // 2


def _frame(shape: Shape) -> str:
    x, y = _centre(shape.x, shape.y)
    width, height = (shape.width - 1) * _WIDE, (shape.height - 1) * _HIGH
    return f'<rect class="bw-frame" x="{x}" y="{y}" width="{width}" height="{height}" rx="12"/>'


def _shape(shape: Shape, odd: bool = False) -> str:
    wrong = " (something is wrong here)" if odd else ""
    tip = f"<title>{quoted(shape.site)}{wrong}</title>" if shape.site else ""
    kind = "title" if shape.kind == "head" else f"{shape.kind} bw-odd" if odd else shape.kind
    return f'<g class="bw-{kind}">{tip}{"".join(_drawn(shape))}</g>'


def _drawn(shape: Shape) -> Iterator[str]:
    x, y = _centre(shape.middle, shape.y)
    match shape.kind:
        case "box":
            left, top = _centre(shape.x, shape.y)
            yield _rect(left, top, (shape.width - 1) * _WIDE, (shape.height - 1) * _HIGH, 7)
            for row, text in enumerate(shape.lines, 1):
                yield _text(text, x, y + row * _HIGH, "" if row == 1 else "bw-more")
        case "norm" | "factor":
            width = shape.width * _WIDE
            yield _rect(x - width / 2, y - _PILL, width, 2 * _PILL, _PILL if shape.kind == "norm" else 4)
            yield _text(shape.lines[0], x, y)
        case "sum":
            yield f'<circle cx="{x}" cy="{y}" r="{_SUM}"/>'
            if shape.lines == ("+",):
                yield f'<path d="M{x - 5} {y}H{x + 5}M{x} {y - 5}V{y + 5}"/>'
            else:
                yield _text(shape.lines[0], x, y)
        case _ if shape.lines and cells(shape.lines[0]) == shape.width:
            yield _text(shape.lines[0], shape.x * _WIDE, y, "bw-left")
        case _:
            yield _text(shape.lines[0], x, y)


def _rect(x: float, y: float, width: float, height: float, radius: int) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}"/>'


def _text(text: str, x: float, y: float, kind: str = "") -> str:
    mark = f' class="{kind}"' if kind else ""
    return f'<text{mark} x="{x:g}" y="{y + _BASELINE:g}">{quoted(text)}</text>'


def _line(line: Line, shapes: Sequence[Shape]) -> str:
    """A line, its corners rounded; its head stops at the edge of what it points to."""
    points = [_centre(*p) for p in line.points]
    head = ""
    if line.arrow:
        (ax, _), (bx, by) = points[-2:]
        toward = 1 if bx > ax else -1
        target = next((s for s in shapes if s.kind == "sum" and (s.x, s.y) == line.points[-1]), None)
        tip = bx - toward * (_SUM + 1 if target is not None else 1)
        head = f'<path class="bw-head" d="M{tip} {by}l{-toward * _HEAD} -4.5v9z"/>'
        points[-1] = (tip - toward * _HEAD // 2, by)
    return f'<path class="{"bw-stream" if line.stream else "bw-line"}" d="{_path(points)}"/>{head}'


def _path(points: Sequence[tuple[int, int]]) -> str:
    d = f"M{points[0][0]} {points[0][1]}"
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        (ax, ay), (bx, by) = _towards(corner, before), _towards(corner, after)
        d += f"L{ax} {ay}Q{corner[0]} {corner[1]} {bx} {by}"
    return d + f"L{points[-1][0]} {points[-1][1]}"


def _towards(corner: tuple[int, int], other: tuple[int, int], by: int = 8) -> tuple[int, int]:
    """The point a little way from a corner."""
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    return corner[0] + max(-by, min(by, dx)), corner[1] + max(-by, min(by, dy))
