"""The formulas that are tried, and what each element of a norm's output says about its row's divisor.

Every formula is y = round(gain * z * r + bias), with z the row (or the row less its mean) and r one number per row.
Only where it rounds differs: once at the end (transformers 5.24.0: models/gemma2/modeling_gemma2.py; torch's own
operators) or before the multiplication too (models/llama/modeling_llama.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from blockaudit.trace.identify.rounding import NARROW, Interval, cell, divide, factor, noise, unrounded, widen


@dataclass(frozen=True)
class Affine:
    """How a row is scaled and shifted. `offset` None: no weight is applied; `rounded`: offset + weight in its dtype."""

    offset: float | None = 0.0
    rounded: bool = False
    bias: bool = False


@dataclass(frozen=True)
class Rounds:
    """Where values are rounded: `work` is the dtype of the moments, `before` whether the row is cast, then scaled.

    `fused`: the bias is added before the product is rounded.
    """

    work: torch.dtype
    before: bool = False
    fused: bool = False


@dataclass(frozen=True)
class Divisor:
    """How r is made: 1 / sqrt(v + epsilon), or 1 / (sqrt(v) + epsilon) outside; v a mean of squares or their sum."""

    family: str
    outside: bool = False
    correction: int = 0

    @property
    def center(self) -> bool:
        return self.family in ("layernorm", "layernorm_std_eps")


@dataclass(frozen=True)
class Spelling:
    """What moments in a narrow dtype also depend on: a variance of one operator, a division in place of rsqrt."""

    var: bool = False
    divide: bool = False


@dataclass(frozen=True)
class Rows:
    """Captured rows [N, D], as x and y were stored in `dtype`, and the weight and bias [D] or [1] beside them."""

    x: Tensor
    y: Tensor
    weight: Tensor | None
    bias: Tensor | None
    dtype: torch.dtype

    @cached_property
    def wide(self) -> Tensor:
        return self.x.double()

    @cached_property
    def mean(self) -> Tensor:
        return self.wide.mean(-1, keepdim=True)

    def narrow_mean(self) -> Tensor:
        """The mean as a narrow dtype holds it, its sum taken in float32."""
        return self.x.float().mean(-1, keepdim=True).to(self.dtype)

    def centred(self, work: torch.dtype) -> tuple[Tensor, Tensor]:
        """The row less its mean, and how far the arithmetic may be off it."""
        if work in NARROW:
            z = (self.x - self.narrow_mean()).double()
            return z, torch.zeros_like(z)
        size = self.wide.square().mean(-1, keepdim=True).sqrt()
        return self.wide - self.mean, noise(work) * (4 * size + 2 * self.wide.abs())

    def gain(self, affine: Affine) -> Tensor | None:
        """What multiplies the row, float64; None for 1."""
        if affine.offset is None or self.weight is None:
            return None
        if affine.rounded:
            return (self.weight + affine.offset).to(self.weight.dtype).double()
        return self.weight.double() + affine.offset

    def take(self, rows: Tensor) -> Rows:
        """Some of the rows."""
        return Rows(self.x[rows], self.y[rows], self.weight, self.bias, self.dtype)


def affines(weight: Tensor | None, bias: Tensor | None) -> Iterator[Affine]:
    """Every way of applying what is stored; only what is not the same function twice."""
    offsets: list[tuple[float | None, bool]] = [(None, False)]
    if weight is not None:
        offsets += [(0.0, False), (1.0, False), (2.0, False)]
        exact = weight.double()
        offsets += [(o, True) for o in (1.0, 2.0) if not torch.equal((weight + o).double(), exact + o)]
    for offset, rounded in offsets:
        for use in (False, True) if bias is not None else (False,):
            yield Affine(offset, rounded, use)


def rounds(dtype: torch.dtype, affine: Affine, weighted: bool) -> Iterator[Rounds]:
    """Every order of rounding of rows in `dtype`."""
    if dtype not in NARROW:
        yield Rounds(dtype)
        if dtype == torch.float64:
            yield Rounds(torch.float32)
        return
    yield Rounds(torch.float32)
    scaled = weighted and affine.offset is not None
    if scaled or affine.bias:
        yield Rounds(torch.float32, before=True)
        if scaled and affine.bias:
            yield Rounds(torch.float32, before=True, fused=True)
    yield Rounds(dtype, before=True)


def product(rows: Rows, affine: Affine, how: Rounds, slack: float = 1.0) -> Interval:
    """Per element, where z * r must lie for y to be what was stored: [N, D], float64; low > high where it cannot.

    `slack` multiplies what the arithmetic between the roundings may be off.
    """
    u = slack * noise(torch.float32 if how.work in NARROW else how.work)
    y, gain = rows.y.double(), rows.gain(affine)
    bias = rows.bias.double() if affine.bias and rows.bias is not None else torch.zeros(1, dtype=torch.float64)
    found = cell((y, y), rows.dtype)
    # A product, a gain made of a sum, and the sum with the bias: one rounding each; narrowed rows and weights too.
    narrowed = 2 * (rows.dtype == torch.float64 and how.work != torch.float64)
    count = noise(torch.float32 if how.work in NARROW else how.work) * (2 + narrowed + bool(affine.offset))
    found = widen(found, count * (slack * y.abs() + 2 * (slack or 1.0) * bias.abs()))
    if affine.bias:
        found = (found[0] - bias, found[1] - bias)
        if how.before and not how.fused and gain is not None:
            found = unrounded(found, rows.dtype)
    if gain is not None:
        found = divide(found, gain)
    if how.before:
        found = unrounded(found, rows.dtype)
        found = widen(found, 1.1 * u * _size(found))
    return found


def _size(found: Interval) -> Tensor:
    both = torch.maximum(found[0].abs(), found[1].abs())
    return torch.where(torch.isfinite(both), both, 0.0)


def reciprocals(rows: Rows, center: bool, affine: Affine, how: Rounds, slack: float = 1.0) -> Interval:
    """Per row, the r that explain all of its elements: [N], float64; low > high where none does.

    A `slack` of 0 leaves the elements no error of their own; those of the mean and of adding a bias stay.
    """
    z, doubt = rows.centred(how.work) if center else (rows.wide, 0.0)
    low, high = factor(product(rows, affine, how, slack), z, (slack or 1.0) * doubt)
    return low.amax(-1), high.amin(-1)


def spread(rows: Rows, divisor: Divisor, work: torch.dtype, spelling: Spelling) -> Interval:
    """Per row, where the arithmetic may have put v, the moment that is divided by: [N], float64."""
    size = rows.x.shape[-1]
    n = 1 if divisor.family == "scalenorm" else size - divisor.correction
    if work in NARROW:
        return _narrow_moment(rows, divisor, n, spelling)
    u, zero = noise(work), torch.zeros((), dtype=torch.float64)
    z = rows.wide - rows.mean if divisor.center else rows.wide
    v = z.square().sum(-1) / n
    mean = rows.mean[:, 0].abs() if divisor.center else zero
    doubt = u * (5 * v + 5 * mean * v.sqrt()) + (3 * u * mean).square()
    return (v - doubt).clamp_min(0), v + doubt


def _narrow_moment(rows: Rows, divisor: Divisor, n: int, spelling: Spelling) -> Interval:
    """The moment as a narrow dtype holds it: squares rounded one by one unless one operator takes the variance."""
    if spelling.var and divisor.center:
        moment = (rows.wide - rows.mean).square().sum(-1) / n
    else:
        z = rows.x - rows.narrow_mean() if divisor.center else rows.x
        squares = (z * z).double()
        if divisor.correction:
            # A ratio of two whole numbers multiplies the rounded mean (reference.norms, Spelling.variance).
            mean = snap_nearest(squares.mean(-1), rows.dtype)
            moment = mean * (squares.shape[-1] / n)
        else:
            moment = squares.sum(-1) / n
    doubt = 8 * noise(torch.float32) * moment
    low, high = moment - doubt, moment + doubt
    return snap_nearest(low, rows.dtype), snap_nearest(high, rows.dtype)


def snap_nearest(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded once to `dtype`, as float64."""
    return values.to(dtype).double()
