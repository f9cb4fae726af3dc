"""The arithmetic that norms are spelled with: one mean, one variance, one division, each in several spellings.

All spellings are equal over the real numbers. Which one is used only moves the last bits, and that is what they are
for: the spread between them is the noise that a site has whatever a correct implementation does.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor

Axes = tuple[int, ...]


@dataclass(frozen=True)
class Spelling:
    """How sums, variances and quotients are computed.

    `sums`: torch's own reduction, or halving the row again and again. `squares`: two passes, or E[x^2] - E[x]^2 in
    one pass (it cancels where the mean is large against the deviation). `root`: x * rsqrt(v) or x / sqrt(v).
    """

    sums: Literal["torch", "pairwise"] = "torch"
    squares: Literal["two_pass", "one_pass"] = "two_pass"
    root: Literal["divide", "rsqrt"] = "divide"

    def total(self, x: Tensor, axes: Axes) -> Tensor:
        """Sum over `axes`, kept as axes of length 1."""
        return x.sum(axes, keepdim=True) if self.sums == "torch" else _pairwise(x, axes)

    def mean(self, x: Tensor, axes: Axes, valid: Tensor | None = None) -> Tensor:
        """Mean over `axes`, kept; of the rows that are `valid` ([..., 1], broadcast against x) where that is given."""
        if valid is not None:
            mask = valid.to(x.dtype).expand_as(x)
            return self.total(torch.where(valid, x, 0), axes) / self.total(mask, axes).clamp_min(1)
        return x.mean(axes, keepdim=True) if self.sums == "torch" else _pairwise(x, axes) / _count(x, axes)

    def variance(
        self, x: Tensor, axes: Axes, correction: int = 0, valid: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Centred x, and its variance over `axes` (kept), the sum of squares divided by n - correction."""
        mean = self.mean(x, axes, valid)
        z = x - mean
        if self.squares == "one_pass":
            moment = (self.mean(x * x, axes, valid) - mean * mean).clamp_min(0)
        else:
            moment = self.mean(z.pow(2), axes, valid)
        if correction == 0:
            return z, moment
        n = _count(x, axes) if valid is None else self.total(valid.to(x.dtype).expand_as(x), axes)
        return z, moment * (n / (n - correction))

    def over(self, z: Tensor, square: Tensor, epsilon: float, outside: bool) -> Tensor:
        """The row divided: z / sqrt(square + epsilon), or z / (sqrt(square) + epsilon) where epsilon is `outside`."""
        if outside:
            root = square.sqrt() + epsilon
            return z * root.reciprocal() if self.root == "rsqrt" else z / root
        return z * torch.rsqrt(square + epsilon) if self.root == "rsqrt" else z / (square + epsilon).sqrt()


def _count(x: Tensor, axes: Axes) -> int:
    return prod(x.shape[axis] for axis in axes)


def _pairwise(x: Tensor, axes: Axes) -> Tensor:
    """Sum over `axes` (kept) by adding the two halves of the row until one number is left."""
    for axis in axes:
        while x.shape[axis] > 1:
            n = x.shape[axis]
            half = n // 2
            paired = x.narrow(axis, 0, half) + x.narrow(axis, half, half)
            x = torch.cat((paired, x.narrow(axis, n - 1, 1)), axis) if n % 2 else paired
    return x
