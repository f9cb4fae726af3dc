"""One quantity by depth as a small chart: a line, a band of quantiles around it, and the numbers under the pointer.

A chart is two paths and a few labels, so that a plotting library would be the largest dependency of the page and the
least of its work; drawn here it follows the reader's colours and is a few kB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from blockaudit.report.html.scale import Scale, fitted

# Pixels of the drawing and of its margins; at phone width it is shown at about this size.
WIDTH, HEIGHT = 420, 180
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 24, 30
# Layers of one chart that answer the pointer; of a deeper stack every so many.
_MOST = 256


class Point(msgspec.Struct, frozen=True):
    """One layer: the value, and the quantiles around it where there are any."""

    layer: int
    value: float
    low: float = math.nan
    high: float = math.nan


class Column(msgspec.Struct, frozen=True):
    """The strip of one layer: it answers the pointer with `says`."""

    x: float
    width: float
    middle: float
    y: float | None
    says: str


class Chart(msgspec.Struct, frozen=True):
    """Everything that the template draws, in pixels."""

    title: str
    says: str
    line: str
    band: str
    zero: float | None
    marked: tuple[float, ...]
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]
    columns: tuple[Column, ...]
    dots: bool


def chart(title: str, points: Sequence[Point], axis: Scale, marked: Sequence[int] = ()) -> Chart:
    """The chart of these points; `marked` are layers to point at."""
    layers = [p.layer for p in points]
    place = _Place(min(layers), max(layers), axis)
    return Chart(
        title=title,
        says=_says(points),
        line=_joined([[(place.x(p.layer), place.y(p.value)) for p in run] for run in _runs(points, False)]),
        band="".join(_band(run, place) for run in _runs(points, True)),
        zero=place.y(0.0) if axis.low < 0 < axis.high else None,
        marked=tuple(place.x(n) for n in marked if layers[0] <= n <= layers[-1]),
        across=tuple((place.x(n), str(n)) for n in _labels(min(layers), max(layers))),
        up=tuple((place.y(tick), f"{tick:g}") for tick in axis.ticks()),
        columns=_columns(points, place),
        dots=len(points) < 3,
    )


def axis_of(points: Sequence[Point], *, signed: bool = False) -> Scale:
    """An axis that holds values and bands."""
    return fitted((n for p in points for n in (p.value, p.low, p.high)), signed=signed)


class _Place(msgspec.Struct, frozen=True):
    first: int
    last: int
    axis: Scale

    def x(self, layer: float) -> float:
        part = (layer - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return round(LEFT + part * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - self.axis.at(value) * (HEIGHT - TOP - BOTTOM), 1)


def _runs(points: Sequence[Point], band: bool) -> list[list[Point]]:
    """Points that follow one another without one that is no number between them."""
    runs: list[list[Point]] = [[]]
    for p in points:
        if all(map(math.isfinite, (p.low, p.high) if band else (p.value,))):
            runs[-1].append(p)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _joined(runs: Sequence[Sequence[tuple[float, float]]]) -> str:
    return "".join("M" + "L".join(f"{x:g} {y:g}" for x, y in run) for run in runs)


def _band(run: Sequence[Point], place: _Place) -> str:
    edge = [(place.x(p.layer), place.y(p.high)) for p in run]
    edge += [(place.x(p.layer), place.y(p.low)) for p in reversed(run)]
    return _joined([edge]) + "Z"


def _columns(points: Sequence[Point], place: _Place) -> tuple[Column, ...]:
    shown = points[:: math.ceil(len(points) / _MOST)]
    wide = round((WIDTH - LEFT - RIGHT) / max(len(shown) - 1, 1), 2)
    found: list[Column] = []
    for p in shown:
        middle = place.x(p.layer)
        y = place.y(p.value) if math.isfinite(p.value) else None
        found.append(Column(round(middle - wide / 2, 1), wide, middle, y, _told(p)))
    return tuple(found)


def _told(p: Point) -> str:
    if math.isnan(p.low) and math.isnan(p.high):
        return f"layer {p.layer}: {p.value:.4g}"
    return f"layer {p.layer}: p05 {p.low:.3g}, p50 {p.value:.3g}, p95 {p.high:.3g}"


def _says(points: Sequence[Point]) -> str:
    """The chart in a sentence, for a reader who does not see it."""
    finite = [p for p in points if math.isfinite(p.value)]
    if not finite:
        return "no finite value"
    low, high = min(finite, key=lambda p: p.value), max(finite, key=lambda p: p.value)
    return (
        f"{finite[0].value:.3g} in layer {finite[0].layer}, {finite[-1].value:.3g} in layer {finite[-1].layer}; "
        f"least {low.value:.3g} in layer {low.layer}, most {high.value:.3g} in layer {high.layer}"
    )


def _labels(first: int, last: int) -> list[int]:
    """Layer numbers along the axis: the first, the last, and round ones between that do not touch them."""
    step = next(s for s in (1, 2, 4, 5, 8, 10, 16, 20, 25, 50, 100, 200, 500, 1000) if (last - first) / s <= 8)
    inner = [n for n in range(first - first % step + step, last, step) if n - first >= step and last - n > step * 0.6]
    return list(dict.fromkeys([first, *inner, last]))
