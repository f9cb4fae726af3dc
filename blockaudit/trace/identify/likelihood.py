"""One number behind many rows, each of which knows it to an interval and to a rounding error of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blockaudit.trace.identify.rounding import Interval
from blockaudit.trace.identify.typed import ndtr

# The errors' spread, in units of one rounding (torch 2.13 on a CPU: 1.5), and what all may have in common (0.3).
_SPREADS = (0.5, 1.0, 1.5, 2.5, 4.0, 8.0)
_BIAS = 0.75
# The largest error of a root; rows with one and the same moment share it.
_SHARED = 4.0
# Log likelihood below the best at which a value is still kept: 99.9 % of one degree of freedom.
_DROP = 5.42
_GRID = 65
_ZOOMS = 4
_REACH = 6 * _SPREADS[-1]


@dataclass(frozen=True)
class Likely:
    """The values that the rows make likely, and the log likelihood of the best, whatever the common bias."""

    low: float
    high: float
    level: float


def likely(rows: Interval, scale: Tensor, bounds: tuple[float, float], different: int) -> Likely:
    """What is likely inside `bounds`, which is what is possible.

    rows: [N] intervals of the value; scale: [N] the size of one rounding in each; different: how many of the rows have
    errors that are not the same error again.
    """
    scale = scale.clamp_min(1e-140)
    weight = scale.pow(-2)
    usual = float((scale * weight).sum() / weight.sum())
    share = different / len(scale)
    low, high = rows
    # A row whose ends are far off says the same of every value here.
    near = (bounds[0] - low < _REACH * scale) | (high - bounds[1] < _REACH * scale)
    low, high, scale = low[near], high[near], scale[near]
    start, end, step = *bounds, 0.0
    grid = torch.linspace(start, end, _GRID, dtype=torch.float64)
    for _ in range(_ZOOMS):
        grid = torch.linspace(start, end, _GRID, dtype=torch.float64)
        level = _profile(low, high, scale, grid) * share
        kept = grid[level >= float(level.max()) - _DROP]
        step = (end - start) / (_GRID - 1)
        start, end = max(bounds[0], float(kept.min()) - step), min(bounds[1], float(kept.max()) + step)
    level = max(_best(low, high, scale, grid, bias, usual) for bias in (-_BIAS, -_BIAS / 2, 0.0, _BIAS / 2, _BIAS))
    allowed = usual * max(_BIAS, _SHARED / different**0.5) + step
    return Likely(max(bounds[0], start - allowed), min(bounds[1], end + allowed), level * share)


def _best(low: Tensor, high: Tensor, scale: Tensor, grid: Tensor, bias: float, usual: float) -> float:
    return float(_profile(low - bias * scale, high - bias * scale, scale, grid - bias * usual).max())


def _profile(low: Tensor, high: Tensor, scale: Tensor, grid: Tensor) -> Tensor:
    """Log likelihood of each value of the grid, the errors' spread at its best for it: [len(grid)]."""
    best = torch.full_like(grid, -torch.inf)
    below, above = (low - grid[:, None]) / scale, (high - grid[:, None]) / scale
    for wide in _SPREADS:
        inside = ndtr(above / wide) - ndtr(below / wide)
        best = torch.maximum(best, inside.clamp_min(1e-30).log().sum(-1))
    return best
