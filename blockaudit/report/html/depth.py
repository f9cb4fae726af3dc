"""The stack by depth: its layers and their kinds, and the norm gains along them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from blockaudit.records.layers import numbers, ranges, spoken
from blockaudit.records.picture import Depth, Gains
from blockaudit.records.report import Report
from blockaudit.report.html.curves import Chart, Point, axis_of, chart
from blockaudit.report.html.numbers import failing_layers

# Norms with a chart of their own, norms without a layer that are listed, shades of kinds.
_CHARTS, _ALONE, _SHADES = 8, 12, 4
_LAYER = re.compile(r"layers\.([0-9]{1,6})\.")


class Layer(msgspec.Struct, frozen=True):
    """One layer of the strip."""

    number: int
    shade: int
    says: str
    odd: bool


class Strip(msgspec.Struct, frozen=True):
    """One stack: its layers in a row, the kinds with the layers of each, and the whole in a sentence."""

    stack: str
    layers: tuple[Layer, ...]
    kinds: tuple[tuple[int, str, str], ...]
    says: str


class Charts(msgspec.Struct, frozen=True):
    """Gains by layer, those of norms that have no layer, and how many charts are not shown."""

    charts: tuple[Chart, ...]
    alone: tuple[tuple[str, str], ...]
    cut: int


def strips(stacks: Sequence[Depth], report: Report) -> list[Strip]:
    """A strip for each stack, with the layers marked that an error names."""
    odd = _odd(report)
    return [_strip(depth, odd if len(stacks) == 1 else {}) for depth in stacks]


def gains(found: Sequence[Gains]) -> Charts:
    """A chart for each norm, all on one axis."""
    layered = [(g, [Point(n, m) for n, m in zip(g.layers, g.means, strict=True)]) for g in found if g.layers]
    axis = axis_of([p for _, points in layered for p in points])
    alone = [(g.site, f"{g.means[0]:.4g}") for g in found if not g.layers and g.means]
    return Charts(
        tuple(chart(g.site, points, axis) for g, points in layered[:_CHARTS]),
        tuple(alone[:_ALONE]),
        max(len(layered) - _CHARTS, 0),
    )


def _odd(report: Report) -> dict[int, str]:
    """Layers that something is wrong with, and what."""
    found: dict[int, str] = {}
    for f in report.findings:
        if f.severity == "error":
            named = numbers(f.layers) if f.layers else _named((f.subject, *f.tensors[:64]))
            found |= {n: f"{f.code} {f.name}" for n in named if n not in found}
    if report.conformance is not None:
        found |= {n: "diverges" for n in failing_layers(report.conformance) if n not in found}
    return found


def _named(texts: Iterable[str]) -> set[int]:
    return {int(n) for text in texts for n in _LAYER.findall(text[:400])}


def _strip(depth: Depth, odd: dict[int, str]) -> Strip:
    kinds = [(name, layers) for name, layers in depth.kinds if layers] or [("", ())]
    kind_of = {n: i for i, (_, layers) in enumerate(kinds) for n in layers}
    shown = range(depth.first, depth.first + depth.layers)
    layers = [
        Layer(n, kind_of.get(n, 0) % _SHADES, _says(n, kinds[kind_of.get(n, 0)][0], odd.get(n, "")), n in odd)
        for n in shown
    ]
    wrong = [n for n in shown if n in odd]
    marked = f"; {spoken(ranges(wrong))} marked" if wrong else ""
    return Strip(
        depth.stack,
        tuple(layers),
        tuple((i % _SHADES, name, ranges(held)) for i, (name, held) in enumerate(kinds) if len(kinds) > 1),
        f"{depth.layers} layers{_order(layers, kinds)}{marked}",
    )


def _says(layer: int, kind: str, odd: str) -> str:
    return " - ".join(part for part in (f"layer {layer}", kind, odd) if part)


def _order(layers: Sequence[Layer], kinds: Sequence[tuple[str, tuple[int, ...]]]) -> str:
    if len(kinds) < 2:
        return ""
    runs = [len(list(group)) for _, group in groupby(layers, key=lambda layer: layer.shade)]
    return f" of {len(kinds)} kinds in {len(runs)} runs, the longest of {max(runs)}" if runs else ""
