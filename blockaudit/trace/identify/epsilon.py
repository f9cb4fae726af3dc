"""From the divisors of rows to the epsilon inside them: what all rows allow, and what they make likely."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blockaudit.trace.identify.formulas import Divisor, Rounds, Rows, Spelling, spread
from blockaudit.trace.identify.rounding import NARROW, Interval, noise, unrounded
from blockaudit.trace.identify.typed import ndtr, unique

# Errors of r, in units of one float32 rounding of v: no more than this in any row ...
_ROOT = 4.0
# ... and as a spread over rows (torch 2.13 on a CPU: 1.5, its mean within 0.3).
_SPREADS = (0.5, 1.0, 1.5, 2.5, 4.0, 8.0)
_BIASES = (-0.75, 0.0, 0.75)
# Log likelihood below the best at which a value is still kept: 99.9 % of one degree of freedom.
_DROP = 5.42
_GRID = 129
_REACH = 6 * _SPREADS[-1]
_LARGEST = 10.0


@dataclass(frozen=True)
class Fit:
    """The epsilons under which every row is explained; empty where low > high.

    `rows`: how many rows there were. `likelihood`: the best log likelihood, to compare divisors of the same r.
    """

    low: float
    high: float
    rows: int
    likelihood: float = 0.0

    @property
    def holds(self) -> bool:
        return self.low <= self.high


def fit(
    rows: Rows,
    r: Interval,
    divisor: Divisor,
    how: Rounds,
    spelling: Spelling,
    slack: float = 1.0,
    sharp: Interval | None = None,
) -> Fit:
    """The interval of epsilon for one formula. `slack` multiplies what the arithmetic may be off.

    `sharp`: r as if no element had an error of its own; what is likely is read off it, where it is given.
    """
    moment = spread(rows, divisor, how.work, spelling)
    middle = (moment[0] + moment[1]) / 2
    moment = (middle + slack * (moment[0] - middle)).clamp_min(0), middle + slack * (moment[1] - middle)
    if how.work in NARROW:
        per_row = _narrow(r, moment, divisor, how.work, spelling)
    else:
        per_row = _wide(r, moment, divisor, slack * _ROOT * noise(how.work))
    low, high = per_row[0].clamp_min(0), per_row[1].clamp_max(_LARGEST)
    start, end = float(low.max()), float(high.min())
    if not start <= end:
        return Fit(start, end, len(low))
    if how.work in NARROW:
        return Fit(*_stored(start, end, how.work), len(low))
    start, end, likelihood = _likely(rows, sharp or r, divisor, how, (start, end), slack)
    return Fit(start, end, len(low), likelihood)


def _root(r: Interval) -> Interval:
    """1 / r, ends exchanged; r = 0 gives infinity."""
    return 1 / r[1].clamp_min(0), 1 / r[0].clamp_min(0)


def _wide(r: Interval, moment: Interval, divisor: Divisor, doubt: float) -> Interval:
    root = _root(r)
    if not divisor.outside:
        root = (root[0].square(), root[1].square())
    beside = tuple(m.sqrt() for m in moment) if divisor.outside else moment
    low, high = root[0] * (1 - doubt) - beside[1], root[1] * (1 + doubt) - beside[0]
    gone = ~(r[0] <= r[1])
    return torch.where(gone, torch.inf, low), torch.where(gone, -torch.inf, high)


def _narrow(r: Interval, moment: Interval, divisor: Divisor, dtype: torch.dtype, spelling: Spelling) -> Interval:
    """Each step back through one rounding: the row's factor, the root, and the sum with epsilon."""
    fuzz = 4 * noise(torch.float32)
    found = r if spelling.divide else unrounded(r, dtype)
    root = _root(found)
    gone = ~(r[0] <= r[1]) | ~(found[0] <= found[1])
    beside = (snap_root(moment[0], dtype), snap_root(moment[1], dtype)) if divisor.outside else moment
    total = root
    if not divisor.outside:
        rooted = unrounded(_fuzzy(root, fuzz), dtype)
        if not spelling.divide:
            # torch 2.13 rounds the root on its way to rsqrt in the last few elements of a tensor, not in the others.
            rooted = torch.minimum(rooted[0], root[0]), torch.maximum(rooted[1], root[1])
        total = rooted[0].square(), rooted[1].square()
    low, high = unrounded(_fuzzy((total[0], total[1]), fuzz), dtype)
    gone |= ~(low <= high)
    low, high = low - beside[1], high - beside[0]
    return torch.where(gone, torch.inf, low), torch.where(gone, -torch.inf, high)


def snap_root(moment: Tensor, dtype: torch.dtype) -> Tensor:
    """The root of v, rounded to `dtype`."""
    return moment.sqrt().to(dtype).double()


def _stored(low: float, high: float, dtype: torch.dtype) -> tuple[float, float]:
    """Epsilons that act as one in [low, high]: torch 2.13 on a CPU rounds the number itself to a narrow dtype first."""
    ends = torch.tensor([low], dtype=torch.float64), torch.tensor([high], dtype=torch.float64)
    start, end = unrounded(ends, dtype)
    return max(0.0, min(low, float(start))), max(high, float(end))


def _fuzzy(found: Interval, by: float) -> Interval:
    return found[0] * (1 - by), found[1] * (1 + by)


def _likely(
    rows: Rows, r: Interval, divisor: Divisor, how: Rounds, bounds: tuple[float, float], slack: float
) -> tuple[float, float, float]:
    """Inside what is possible, what is likely when each row's r has a rounding error of its own; and how likely.

    The errors of many rows average out; those of rows with one and the same moment do not, nor does a common bias.
    """
    moment = spread(rows, divisor, how.work, Spelling())
    v = (moment[0] + moment[1]) / 2
    # Elements that contradict each other by less than their error leave a crossed pair.
    low, high = _wide((torch.minimum(*r), torch.maximum(*r)), (v, v), divisor, 0.0)
    usable = torch.isfinite(low) & torch.isfinite(high) & (low <= high)
    if not bool(usable.any()):
        return *bounds, 0.0
    low, high, v = low[usable], high[usable], v[usable]
    # One rounding of r, in units of epsilon.
    scale = slack * noise(how.work) * ((v.sqrt() + bounds[1]) / 2 if divisor.outside else v + bounds[1])
    different = len(unique(v.float()))
    grid = torch.linspace(bounds[0], bounds[1], _GRID, dtype=torch.float64)
    scale = scale.clamp_min(1e-140)
    # A row whose ends are far off says the same of every epsilon here.
    near = (bounds[0] - low < _REACH * scale) | (high - bounds[1] < _REACH * scale)
    level = _profile(low[near], high[near], scale[near], grid) * (different / len(v))
    kept = grid[level >= float(level.max()) - _DROP]
    weight = scale.pow(-2)
    usual = float((scale * weight).sum() / weight.sum())
    allowed = usual * _ROOT / different**0.5 + (bounds[1] - bounds[0]) / (_GRID - 1)
    start, end = float(kept.min()) - allowed, float(kept.max()) + allowed
    return max(bounds[0], start), min(bounds[1], end), float(level.max())


def _profile(low: Tensor, high: Tensor, scale: Tensor, grid: Tensor) -> Tensor:
    """Log likelihood of each epsilon of the grid, the errors' spread and bias at their best for it: [len(grid)]."""
    best = torch.full_like(grid, -torch.inf)
    for bias in _BIASES:
        below, above = low / scale - bias, high / scale - bias
        at = grid[:, None] / scale
        for wide in _SPREADS:
            inside = ndtr((above - at) / wide) - ndtr((below - at) / wide)
            best = torch.maximum(best, inside.clamp_min(1e-30).log().sum(-1))
    return best
