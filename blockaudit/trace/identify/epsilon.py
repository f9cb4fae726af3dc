"""From the divisors of rows to the epsilon inside them: what all rows allow, and what they make likely."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

import torch
from torch import Tensor

from blockaudit.trace.identify.formulas import Divisor, Rounds, Rows, Spelling, spread
from blockaudit.trace.identify.likelihood import Likely, likely
from blockaudit.trace.identify.rounding import NARROW, Interval, noise, unit, unrounded
from blockaudit.trace.identify.typed import unique

# Errors of a root, in roundings of what is under it: no more than this in any row.
_ROOT = 4.0
_LARGEST = 10.0


@dataclass(frozen=True)
class Fit:
    """The epsilons under which every row is explained; empty where low > high.

    `rows`: how many rows there were. `likelihood`: the best log likelihood, to compare divisors of the same r. `loose`:
    only a narrow sum of the squares, whose order nobody knows, explains the rows.
    """

    low: float
    high: float
    rows: int
    likelihood: float = 0.0
    loose: bool = False

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
    if how.work in NARROW:
        return _fit_narrow(r, moment, divisor, how.work, spelling, rows.x.shape[-1])
    middle = (moment[0] + moment[1]) / 2
    moment = (middle + slack * (moment[0] - middle)).clamp_min(0), middle + slack * (moment[1] - middle)
    start, end = _common(_wide(r, moment, divisor, slack * _ROOT * noise(how.work)))
    if not start <= end:
        return Fit(start, end, len(rows.x))
    found = _likely(rows, sharp or r, divisor, how, (start, end), slack)
    # Where epsilon is nearly all of the divisor, every row makes the same error.
    shared = slack * _ROOT * noise(how.work)
    ends = found.low * (1 - shared), found.high * (1 + shared)
    return Fit(*_stored(*ends, how.work), len(rows.x), found.level)


def _fit_narrow(
    r: Interval, moment: Interval, divisor: Divisor, dtype: torch.dtype, spelling: Spelling, width: int
) -> Fit:
    """Epsilon as if the squares were summed in `dtype` in any order; `loose` where a float32 sum explains nothing."""
    finite = torch.isfinite(moment[1])
    r, moment = (r[0][finite], r[1][finite]), (moment[0][finite], moment[1][finite])
    if not bool(finite.any()):
        return Fit(0.0, _LARGEST, len(finite), loose=True)
    summed = unit(dtype) * (1 + log2(width) / 2)
    start, end = _common(_narrow(r, _fuzzy(moment, summed), divisor, dtype, spelling))
    if not start <= end:
        return Fit(start, end, len(finite))
    exact = _common(_narrow(r, moment, divisor, dtype, spelling))
    return Fit(*_stored(start, end, dtype), len(finite), loose=not exact[0] <= exact[1])


def _common(per_row: Interval) -> tuple[float, float]:
    """What all rows allow, from 0 on."""
    return float(per_row[0].clamp_min(0).max()), float(per_row[1].clamp_max(_LARGEST).min())


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
    """Epsilons that act as one in [low, high]: the number itself may be rounded first (torch 2.13: on a CPU)."""
    if dtype == torch.float64:
        return low, high
    ends = torch.tensor([low], dtype=torch.float64), torch.tensor([high], dtype=torch.float64)
    start, end = unrounded(ends, dtype)
    return max(0.0, min(low, float(start))), max(high, float(end))


def _fuzzy(found: Interval, by: float) -> Interval:
    return found[0] * (1 - by), found[1] * (1 + by)


def _likely(
    rows: Rows, r: Interval, divisor: Divisor, how: Rounds, bounds: tuple[float, float], slack: float
) -> Likely:
    """What the rows make likely inside `bounds`, which is what is possible."""
    moment = spread(rows, divisor, how.work, Spelling())
    v = (moment[0] + moment[1]) / 2
    # Elements that contradict each other by less than their error leave a crossed pair.
    low, high = _wide((torch.minimum(*r), torch.maximum(*r)), (v, v), divisor, 0.0)
    usable = torch.isfinite(low) & torch.isfinite(high) & (low <= high)
    if not bool(usable.any()):
        return Likely(*bounds, 0.0)
    # One rounding of r, in units of epsilon; `spread` allows for five of v, more where a mean was taken off.
    one = ((moment[1] - moment[0]) / 10)[usable]
    v = v[usable]
    if divisor.outside:
        one = one / (2 * v.sqrt().clamp_min(1e-150))
    scale = slack * (one + noise(how.work) * bounds[1] / (2 if divisor.outside else 1))
    # Where epsilon is most of what is under the root, all rows take the same root.
    different = len(unique((v.sqrt() if divisor.outside else v).add(bounds[1]).float()))
    return likely((low[usable], high[usable]), scale, bounds, different)
