"""One number between two captured values: a multiplier (embedding, logits), a softcap, a dropout probability."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blockaudit.trace.identify.rounding import Interval, cell, factor, unit, unrounded, widen
from blockaudit.trace.identify.solved import Solved, number_in, unknown

PLAIN = (0.0, 1.0, 2.0, 0.5, -1.0)
# How much more than one rounding a product may be off: a factor stored in a narrow dtype, or a division by its inverse.
_SLACKS = (0.0, 1.0)
_BISECTIONS = 80
_CAPS = (1e-3, 1e6)
# Elements below which no share of them is a probability.
_ENOUGH = 16
# Elements among which a dropout of 1 % shows in 99 of 100 cases.
CLEAR = 512
_FLOAT = 4 * unit(torch.float64)


def as_stored(low: float, high: float, dtype: torch.dtype) -> tuple[float, float]:
    """Numbers that act as one in [low, high] where the dtype may have rounded the number itself first."""
    if dtype == torch.float64:
        return low, high
    start, end = unrounded((torch.tensor([low]).double(), torch.tensor([high]).double()), dtype)
    return min(low, float(start)), max(high, float(end))


def identify_scale(
    a: Tensor, b: Tensor, *, dtype: torch.dtype, field: str = "scale", candidates: Sequence[float] = ()
) -> Solved:
    """The k of b = k * a, both as captured in `dtype`, same shape. `candidates`: numbers to name it after."""
    x, y = a.double().reshape(-1), b.double().reshape(-1)
    finite = torch.isfinite(x) & torch.isfinite(y)
    x, y = x[finite], y[finite]
    if not bool((x != 0).any()):
        return unknown(field, "nothing is multiplied: every element is zero")
    sign = -1.0 if float((x * y).sum()) < 0 else 1.0
    for slack in _SLACKS:
        found = cell((y * sign, y * sign), dtype)
        found = widen(found, (2 * unit(torch.float64 if dtype == torch.float64 else torch.float32)) * y.abs())
        found = widen(found, slack * unit(dtype) * y.abs())
        low, high = factor(found, x, 0.0)
        start, end = float(low.max()), float(high.min())
        if start <= end:
            start, end = as_stored(start, end, dtype)
            ends = (start, end) if sign > 0 else (-end, -start)
            return Solved(field, number_in(*ends, (*candidates, *PLAIN)), ends, f"one factor gives {len(x)} elements")
    return unknown(field, "no one factor gives every element")


def identify_softcap(
    raw: Tensor, capped: Tensor, *, dtype: torch.dtype = torch.float32, field: str = "softcap"
) -> Solved:
    """The c of capped = c * tanh(raw / c), both as captured in `dtype`; value 0.0 where nothing is capped.

    Gemma 2 (transformers 5.24.0: models/gemma2/modeling_gemma2.py). Elements far below the cap do not decide.
    """
    x, y = raw.double().reshape(-1), capped.double().reshape(-1)
    finite = torch.isfinite(x) & torch.isfinite(y)
    x, y = x[finite].abs(), y[finite].abs()
    if not bool((x > 0).any()):
        return unknown(field, "no element is larger than zero")
    # Quotient, tanh and product are each rounded.
    doubt = 3 * unit(dtype) * (x + y) / 2 + 8 * unit(torch.float32 if dtype != torch.float64 else dtype) * x
    low, high = y - doubt, y + doubt
    start, end = float(_cap(x, low, False).max()), float(_cap(x, high, True).min())
    if start > end:
        return unknown(field, "no one cap gives every element")
    if end >= 0.999 * _CAPS[1]:
        same = bool(torch.equal(x, y))
        return Solved(field, 0.0 if same and start > 2 * float(x.max()) else None, (start, torch.inf), _told(same))
    start, end = as_stored(start, end, dtype)
    return Solved(field, number_in(start, end, range(1, 1001), 0.05), (start, end), f"one cap gives {len(x)} elements")


def _told(same: bool) -> str:
    return "nothing is capped" if same else "every element is too far below the cap to tell it"


def _cap(x: Tensor, y: Tensor, upper: bool) -> Tensor:
    """The c at which c * tanh(x / c) = y, x >= 0, by bisection of its logarithm; it grows with c, to x."""
    low, high = torch.full_like(x, _CAPS[0]).log(), torch.full_like(x, _CAPS[1]).log()
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        c = middle.exp()
        above = c * torch.tanh(x / c) > y
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return (high if upper else low).exp()


def identify_dropout(
    raw: Tensor, dropped: Tensor, *, dtype: torch.dtype, doubt: Tensor | None = None, field: str = "dropout"
) -> Solved:
    """The p of a dropout between two values: some elements zero, the rest times 1 / (1 - p). 0.0: none is active.

    `doubt`: how far each element of `dropped` may be off beyond its own rounding (a difference of captured states).
    """
    u, d = raw.double().reshape(-1), dropped.double().reshape(-1)
    off = 2 * unit(dtype) * d.abs() + (0.0 if doubt is None else doubt.reshape(-1))
    clear = torch.isfinite(u) & torch.isfinite(d) & (u.abs() > 4 * off) & (u != 0)
    u, d, off = u[clear], d[clear], off[clear]
    if len(u) < _ENOUGH:
        return unknown(field, "too few elements stand clear of the rounding")
    gone = d.abs() <= off
    kept = factor((d[~gone] - off[~gone], d[~gone] + off[~gone]), u[~gone], 0.0)
    if not bool((~gone).any()):
        return unknown(field, "every element is zero")
    low, high = float(kept[0].max()), float(kept[1].min())
    share = float(gone.double().mean())
    if low > high:
        return unknown(field, "the elements that are left are not one multiple of what they were")
    return _probability(field, share, (low, high), len(u))


def _probability(field: str, share: float, scale: Interval | tuple[float, float], count: int) -> Solved:
    low, high = float(scale[0]), float(scale[1])
    if share == 0.0:
        if not low <= 1.0 <= high:
            return unknown(field, "no element is zero, and all are scaled")
        if count < CLEAR:
            return unknown(field, f"none of {count} elements is zero, as with a small dropout")
        return Solved(field, 0.0, (0.0, 0.0), "no element is zero")
    if low <= 1.0:
        return unknown(field, f"{share:.3g} of the elements are zero, and the rest are not scaled up")
    ends = (1 - 1 / low - _FLOAT, 1 - 1 / high + _FLOAT)
    noise = 4 * (max(share * (1 - share), 1 / count) / count) ** 0.5
    if not ends[0] - noise <= share <= ends[1] + noise:
        return unknown(field, f"{share:.3g} of the elements are zero, the rest times {low:.4g}", ends)
    return Solved(field, number_in(*ends, ()), ends, f"{share:.3g} of {count} elements are zero, the rest scaled up")
