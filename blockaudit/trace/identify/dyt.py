"""Dynamic Tanh (Zhu et al. 2025): gain * tanh(alpha * x) + bias; the alphas that explain every element."""

from __future__ import annotations

import torch

from blockaudit.trace.identify.formulas import Affine, Rounds, Rows, product
from blockaudit.trace.identify.rounding import NARROW, factor, noise, unrounded, widen

# What torch's tanh may be off, in roundings of the work dtype.
_TANH = 4.0


def alphas(rows: Rows, affine: Affine, how: Rounds, slack: float = 1.0) -> tuple[float, float] | None:
    """The interval of alpha >= 0; None where no alpha explains all elements, or every alpha does."""
    u = slack * noise(torch.float32 if how.work in NARROW else how.work)
    low, high = product(rows, affine, how, slack)
    if not bool((low <= high).all()):
        return None
    low, high = widen(
        (low, high), torch.full_like(low, 0.0) + _TANH * u * torch.maximum(low.abs(), high.abs()).clamp_max(1)
    )
    if bool(((low > 1) | (high < -1)).any()):
        return None
    argument = torch.atanh(low.clamp(-1, 1)), torch.atanh(high.clamp(-1, 1))
    if how.work in NARROW:
        argument = unrounded(argument, rows.dtype)
    size = torch.where(
        torch.isfinite(argument[0] + argument[1]), torch.maximum(argument[0].abs(), argument[1].abs()), 0
    )
    found = factor(widen(argument, 2 * u * size), rows.wide, 0.0)
    start, end = float(found[0].max()), float(found[1].min())
    return (start, end) if 0 < start <= end else None
