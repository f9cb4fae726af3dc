"""Rounding run backwards: which real numbers would have been stored as what was captured.

An interval is a pair of float64 tensors (low, high). Every step widens outward, so that the truth is never cut off.
"""

from __future__ import annotations

import torch
from torch import Tensor

Interval = tuple[Tensor, Tensor]

_INTEGERS = {
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
NARROW = (torch.bfloat16, torch.float16)


def unit(dtype: torch.dtype) -> float:
    """The largest relative error of one rounding: half a unit in the last place."""
    return torch.finfo(dtype).eps / 2


def noise(work: torch.dtype) -> float:
    """One rounding of the arithmetic in `work`; in float64 our own is as large and comes on top."""
    return unit(work) * (4 if work == torch.float64 else 1)


def name(dtype: torch.dtype) -> str:
    """`torch.float32` -> `float32`."""
    return str(dtype).removeprefix("torch.")


def neighbour(values: Tensor, up: bool) -> Tensor:
    """The next number of the values' dtype, above or below; infinities stay."""
    integer = _INTEGERS[values.dtype]
    bits = values.contiguous().view(integer)
    lowest = torch.iinfo(integer).min
    # Sign and magnitude to one ordered scale; both zeros are 0.
    order = torch.where(bits < 0, lowest - bits, bits)
    order = order + (1 if up else -1)
    back = torch.where(order < 0, lowest - order, order).to(integer).view(values.dtype)
    edge = torch.isinf(values) & ((values > 0) == up)
    return torch.where(edge, values, back)


def cell(values: Interval, dtype: torch.dtype) -> Interval:
    """What rounds into [low, high], both of them numbers of `dtype`; in float64 a whole unit to each side."""
    low, high = values
    below, above = (neighbour(low.to(dtype), False).double(), neighbour(high.to(dtype), True).double())
    if dtype == torch.float64:
        return below, above
    return torch.where(torch.isinf(low), low, (low + below) / 2), torch.where(
        torch.isinf(high), high, (high + above) / 2
    )


def snap(values: Interval, dtype: torch.dtype) -> Interval:
    """The smallest and largest numbers of `dtype` inside; low > high where there is none."""
    low, high = values[0].to(dtype), values[1].to(dtype)
    low = torch.where(low.double() < values[0], neighbour(low, True), low)
    high = torch.where(high.double() > values[1], neighbour(high, False), high)
    return low.double(), high.double()


def unrounded(values: Interval, dtype: torch.dtype) -> Interval:
    """What rounds to some number of `dtype` in [low, high]; empty stays empty."""
    low, high = snap(values, dtype)
    wide = cell((low, high), dtype)
    gone = ~(low <= high)
    return torch.where(gone, torch.inf, wide[0]), torch.where(gone, -torch.inf, wide[1])


def widen(values: Interval, by: Tensor) -> Interval:
    """Both ends moved outward by `by`, absolute."""
    return values[0] - by, values[1] + by


def divide(values: Interval, by: Tensor) -> Interval:
    """The z for which by * z may lie inside; everything where `by` is 0 and 0 is inside, nothing where it is not."""
    low, high = values
    first, second = low / by, high / by
    holds = (low <= 0) & (high >= 0)
    zero, gone = by == 0, ~(low <= high)
    start = torch.where(zero, torch.where(holds, -torch.inf, torch.inf), torch.minimum(first, second))
    end = torch.where(zero, torch.where(holds, torch.inf, -torch.inf), torch.maximum(first, second))
    return torch.where(gone, torch.inf, start), torch.where(gone, -torch.inf, end)


def factor(values: Interval, of: Tensor, doubt: Tensor | float) -> Interval:
    """The r >= 0 for which c * r may lie inside, for some c within `doubt` of `of`."""
    low, high = values
    flip = low + high < 0
    low, high = torch.where(flip, -high, low), torch.where(flip, -low, high)
    centre = torch.where(flip, -of, of)
    least, most = centre - doubt, centre + doubt
    inf = torch.inf
    # Now high >= 0. A positive low needs a positive c; a negative one is also met by a small negative c.
    start = torch.where(low > 0, torch.where(most > 0, low / most, inf), 0.0)
    end = torch.where(least > 0, high / least, inf)
    end = torch.where((low <= 0) & (most < 0), low / most, end)
    # A product that does not change with r is inside or not.
    end = torch.where((low > 0) & (most <= 0), -inf, end)
    gone = ~(values[0] <= values[1])
    return torch.where(gone, inf, start), torch.where(gone, -inf, end)
