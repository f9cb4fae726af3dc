"""The error of every site by layer against its tolerance: one table for each mode, dtype and stack.

A table and no picture: rows and columns have names, a cell says its numbers under the pointer, and a failure is a
sign as well as a colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from blockaudit.records.conformance import MODES, Conformance, SiteResult
from blockaudit.records.sites import parse
from blockaudit.report.words import count

# Cells of one page; of a model with more, neighbouring layers share a cell, which shows the worst of them.
_CELLS = 9000
# Bounds of observed / tolerance between the shades of what passes, and of what fails.
_PASSING, _FAILING = (0.01, 0.1, 0.3), (10.0, 1000.0)

# How large a cell is drawn, and of how many columns a map may have for it.
_SIZES = (("large", 16), ("middle", 36), ("fine", 60), ("small", _CELLS))


class Cell(msgspec.Struct, frozen=True):
    """One site in one layer: its shade, what it says, whether it is the first divergence."""

    shade: str
    says: str
    first: bool = False


class Row(msgspec.Struct, frozen=True):
    """One site in every layer; a cell is None where a layer lacks it. `alone`: a site outside the layers."""

    label: str
    cells: tuple[Cell | None, ...]
    alone: bool = False


class Map(msgspec.Struct, frozen=True):
    """One stack: its layers in groups of `step` per column, and the rows."""

    stack: str
    heads: tuple[tuple[int, int], ...]  # layer number at the left of a group, columns that the group spans
    columns: int
    step: int
    rows: tuple[Row, ...]
    size: str


class Panel(msgspec.Struct, frozen=True):
    """One mode in one dtype."""

    mode: str
    dtype: str
    says: str
    failed: int
    maps: tuple[Map, ...]


def panels(run: Conformance) -> list[Panel]:
    """Every mode and dtype that was run, as it is executed."""
    groups: dict[tuple[str, str], list[SiteResult]] = {}
    for site in sorted(run.sites, key=lambda s: MODES.index(s.mode)):
        groups.setdefault((site.mode, site.dtype), []).append(site)
    step = math.ceil(len(run.sites) / _CELLS) or 1
    return [
        Panel(mode, dtype, _says(sites), sum(s.passed is False for s in sites), tuple(_maps(sites, step, run.first)))
        for (mode, dtype), sites in groups.items()
    ]


def excess(site: SiteResult) -> float:
    """Observed over tolerance; infinite for what is no number."""
    if not math.isfinite(site.observed):
        return math.inf
    if math.isfinite(site.tolerance) and site.tolerance > 0:
        return site.observed / site.tolerance
    return math.inf if site.observed and not site.tolerance else 0.0


def _says(sites: Sequence[SiteResult]) -> str:
    """The panel in a sentence."""
    compared = [s for s in sites if s.passed is not None]
    if not compared:
        return "nothing was compared"
    failed = [s for s in compared if not s.passed]
    worst = max(failed or compared, key=excess)
    many = count(len(compared), "comparison")
    if failed:
        return f"{len(failed):,} of {many} fail; the worst is {worst.site}, {_times(worst)} its tolerance"
    return f"all {many} within tolerance; the nearest to it is {worst.site}, at {_times(worst)} of it"


def _times(site: SiteResult) -> str:
    return f"{excess(site):.3g} times" if not site.passed else f"{100 * excess(site):.3g} %"


def _maps(sites: Sequence[SiteResult], step: int, first: SiteResult | None) -> list[Map]:
    """Stack by stack; sites outside the layers stand before and after them, as they are executed."""
    stacks: dict[str, list[SiteResult]] = {}
    for site in sites:
        name = parse(site.site)
        stacks.setdefault(name.stack if name is not None else "", []).append(site)
    return [_map(stack, found, step, first) for stack, found in stacks.items()]


def _map(stack: str, sites: Sequence[SiteResult], step: int, first: SiteResult | None) -> Map:
    layers = sorted({name.layer for s in sites if (name := parse(s.site)) and name.layer is not None})
    low = layers[0] if layers else 0
    columns = (layers[-1] - low) // step + 1 if layers else 1
    rows: dict[tuple[str, bool], dict[int, list[SiteResult]]] = {}
    for site in sites:
        name = parse(site.site)
        alone = name is None or name.layer is None
        at = 0 if name is None or name.layer is None else (name.layer - low) // step
        rows.setdefault((_label(site.site, stack), alone), {}).setdefault(at, []).append(site)
    return Map(
        stack,
        _heads(low, columns, step),
        columns,
        step,
        tuple(
            Row(label, tuple(_cell(found.get(i), first) for i in range(1 if alone else columns)), alone)
            for (label, alone), found in rows.items()
        ),
        next(size for size, most in _SIZES if columns <= most),
    )


def _heads(low: int, columns: int, step: int) -> tuple[tuple[int, int], ...]:
    every = 1 if columns <= 36 else 4 if columns <= 60 else 8
    return tuple((low + at * step, min(every, columns - at)) for at in range(0, columns, every))


def _label(name: str, stack: str) -> str:
    site = parse(name)
    if site is None:
        return name
    return site.site if site.layer is None else f"{site.branch}.{site.site}" if site.branch else f"layer {site.site}"


def _cell(sites: Sequence[SiteResult] | None, first: SiteResult | None) -> Cell | None:
    if not sites:
        return None
    worst = max(sites, key=lambda s: (s.passed is False, s.passed is not None, excess(s)))
    return Cell(_shade(worst), _told(worst), first is not None and any(s == first for s in sites))


def _shade(site: SiteResult) -> str:
    """`p0` (the same to the bit) to `p4` (at its tolerance) for what passes, `f1` to `f3` for what fails."""
    if site.passed is None:
        return "u"
    over = excess(site)
    if site.passed:
        return "p0" if site.observed == 0 else f"p{1 + sum(over > bound for bound in _PASSING)}"
    return f"f{1 + sum(over > bound for bound in _FAILING)}"


def _told(site: SiteResult) -> str:
    name = parse(site.site)
    where = "" if name is None or name.layer is None else f"{name.layer}: "
    if site.passed is None:
        return f"{where}not compared"
    probe = f", {site.probe}" if site.probe else ""
    metric = "" if site.metric == "rms_rel" else f" {site.metric}"
    return f"{where}{site.observed:.2g} of {site.tolerance:.2g}{metric}{probe}"
