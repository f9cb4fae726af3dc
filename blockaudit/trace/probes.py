"""Rows that a fault in a norm cannot hide from.

At unit scale an epsilon of 1e-5 for 1e-6 moves a row by 4.5e-6: nothing in bfloat16. A row whose mean square is near
epsilon is moved by a third and more.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# RMS of the tiny rows. Their mean squares, 1e-12 to 1e-4, lie around every epsilon in use (none, 1e-12, 1e-8, 1e-6,
# 1e-5, 1e-3): any one of these in place of another moves some row by a third and more.
TINY = (1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
# Of few bits, so that the sum over a row and its mean are exact in any order: what is left is what the formula says,
# not a quotient of two roundings.
_CONSTANTS = (1.0, -0.75, 24.0, 0.03125)
_SHIFTS = (8.0, -64.0, 512.0)
_SPIKES = (100.0, 1000.0)


def rows(width: int, *, seed: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Probe rows by kind, each [n, width] in `dtype`: the same for a seed on every device.

    constant (no variance), zero, tiny (RMS of `TINY`), shifted (mean
    far above the deviation), spiky (a few large channels), mean (a mean of the size of the deviation).
    """
    draw = torch.Generator().manual_seed(seed)
    made = {kind: make(width, draw) for kind, make in _KINDS.items()}
    return {kind: values.to(dtype).to(device) for kind, values in made.items()}


def _normal(n: int, width: int, draw: torch.Generator) -> Tensor:
    """Rows of mean square 1 exactly (up to rounding), so that a scale is the row's RMS."""
    x = torch.randn(n, width, generator=draw, dtype=torch.float64)
    return x / x.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-6)


def _constant(width: int, draw: torch.Generator) -> Tensor:
    del draw
    return torch.tensor(_CONSTANTS, dtype=torch.float64)[:, None].expand(-1, width)


def _zero(width: int, draw: torch.Generator) -> Tensor:
    del draw
    return torch.zeros(1, width, dtype=torch.float64)


def _tiny(width: int, draw: torch.Generator) -> Tensor:
    return _normal(len(TINY), width, draw) * torch.tensor(TINY, dtype=torch.float64)[:, None]


def _shifted(width: int, draw: torch.Generator) -> Tensor:
    return _normal(len(_SHIFTS), width, draw) + torch.tensor(_SHIFTS, dtype=torch.float64)[:, None]


def _spiky(width: int, draw: torch.Generator) -> Tensor:
    """One channel in 64, at least one, is as large as real models' massive activations."""
    x = _normal(len(_SPIKES), width, draw)
    for row, size in zip(x, _SPIKES, strict=True):
        row[torch.randperm(width, generator=draw)[: max(1, width // 64)]] = size
    return x


def _mean(width: int, draw: torch.Generator) -> Tensor:
    return _normal(4, width, draw) * 0.5 + torch.tensor([[0.5], [-0.5], [1.0], [-2.0]], dtype=torch.float64)


_KINDS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "constant": _constant,
    "zero": _zero,
    "tiny": _tiny,
    "shifted": _shifted,
    "spiky": _spiky,
    "mean": _mean,
}
