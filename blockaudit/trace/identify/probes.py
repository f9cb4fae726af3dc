"""Rows to ask a norm with: so small that epsilon decides, shifted, constant, spiky; every number exact in the dtype."""

from __future__ import annotations

import torch
from torch import Tensor

# Epsilon is seen where the mean square is no larger than it: 1e-30 still tells 1e-29 from 0.
_SMALLEST = {torch.float16: 6e-8}
_TINIEST = 1e-15
_LARGE = (0.1, 0.3, 1.0, 3.0, 30.0)


def probe_rows(width: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """[n, width] in dtype: about eighty rows from 1e-15 (float16: its smallest number) to 30."""
    generator = torch.Generator().manual_seed(seed)
    smallest = _SMALLEST.get(dtype, _TINIEST)
    scales = [smallest * 10.0**k for k in range(20) if smallest * 10.0**k < 0.05]
    made: list[Tensor] = []
    for scale in [*scales, *_LARGE]:
        plain, shifted, spiky = torch.randn((3, width), generator=generator, dtype=torch.float64)
        spiky = spiky * 0.1
        spiky[int(torch.randint(width, (1,), generator=generator))] = 8.0
        made += [scale * row for row in (plain, shifted + 1.5, spiky)]
    made += [torch.full((width,), scale, dtype=torch.float64) for scale in (1e-3, 0.75)]
    return torch.stack(made).to(dtype)
