"""The geometry of residual updates by depth (specification 0x0CA), as a table that fits a screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blockaudit.records.conformance import Quantiles, Telemetry
from blockaudit.records.sites import parse
from blockaudit.report.escape import escape
from blockaudit.report.layout import Line, Span, table

# Rows of the whole table; a branch has four at least.
_ROWS, _FEWEST = 16, 4
_FIGURES: dict[str, Callable[[Telemetry], str]] = {
    "rho p50": lambda u: f"{u.rho.p50:.3g}",
    "rho p95": lambda u: f"{u.rho.p95:.3g}",
    "rho max": lambda u: f"{u.rho.max:.3g}",
    "cosine p05": lambda u: f"{u.cosine.p05:+.3f}",
    "cosine p50": lambda u: f"{u.cosine.p50:+.3f}",
    "cosine p95": lambda u: f"{u.cosine.p95:+.3f}",
    "growth p50": lambda u: f"{u.growth.p50:.3g}",
    "growth max": lambda u: f"{u.growth.max:.3g}",
}
# What a narrow terminal does without, first things first.
_SPARED = ("growth max", "cosine p05", "cosine p95", "rho max", "rho p95")


def updates(telemetry: Sequence[Telemetry], width: int) -> list[Line]:
    """Branch by branch: the first layer, the last, and some evenly between them."""
    branches = _branches(telemetry)
    if not branches:
        return []
    most = max(_ROWS // len(branches), _FEWEST)
    shown = [(branch, *row) for branch, found in branches.items() for row in _spread(found, most)]
    columns = {title: [_FIGURES[title](u) for _, _, u in shown] for title in _FIGURES}
    widths = {title: max(map(len, (title, *texts))) for title, texts in columns.items()}
    heads = max(len("Updates by depth"), *(len(branch) + 2 for branch in branches)) + len("layer") + 4
    for title in _SPARED:
        if heads + sum(w + 2 for w in widths.values()) > width:
            del widths[title]
    rows: list[list[Span]] = [
        [("Updates by depth", "head"), ("layer", "dim"), *((t.rjust(w), "dim") for t, w in widths.items())]
    ]
    for i, (branch, layer, _) in enumerate(shown):
        named = not i or shown[i - 1][0] != branch
        figures: list[Span] = [(columns[title][i].rjust(w), "") for title, w in widths.items()]
        rows.append([(f"  {escape(branch)}" if named else "", ""), (str(layer).rjust(len("layer")), "dim"), *figures])
    return [(), *table(rows)]


def growth(stacks: Sequence[tuple[str, Quantiles]]) -> list[Line]:
    """How much larger the state leaves a stack than it entered it: one line for each."""
    return [
        ((f"  growth of the state over {escape(stack) or 'the stack'}: p50 {q.p50:.3g}, max {q.max:.3g}", "dim"),)
        for stack, q in stacks
    ]


def _branches(telemetry: Sequence[Telemetry]) -> dict[str, list[tuple[int, Telemetry]]]:
    """`decoder.mlp` -> (layer, update) in order."""
    branches: dict[str, list[tuple[int, Telemetry]]] = {}
    for update in telemetry:
        name = parse(update.site)
        if name is not None and name.layer is not None:
            where = ".".join(filter(None, (name.stack, name.branch)))
            branches.setdefault(where, []).append((name.layer, update))
    return branches


def _spread(found: list[tuple[int, Telemetry]], most: int) -> list[tuple[int, Telemetry]]:
    if len(found) <= most:
        return found
    picked = dict.fromkeys(round(i * (len(found) - 1) / (most - 1)) for i in range(most))
    return [found[i] for i in picked]
