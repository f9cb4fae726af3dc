"""Sizes of the tiny models: one whose dimensions all differ, and one whose matrices are square."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sizes:
    """Elements along each dimension. A head has d_model / n_heads rows."""

    d_model: int = 32
    n_layers: int = 2
    n_heads: int = 4
    n_kv: int = 2
    d_ff: int = 48
    vocab: int = 96
    n_ctx: int = 16

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads


PLAIN = Sizes()
# Every projection is as wide as it is long: no shape tells a transpose, or q from k from v.
SQUARE = Sizes(n_kv=4, d_ff=32)


class Drawn:
    """Numbers of one seed, in the order in which they are asked for."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, *shape: int) -> torch.Tensor:
        """Normal, scaled so that a product keeps the size of what it is applied to."""
        return torch.randn(*shape, generator=self._generator) * shape[-1] ** -0.5

    def vector(self, size: int) -> torch.Tensor:
        """A bias, none of its elements zero on purpose."""
        return torch.randn(size, generator=self._generator) * 0.5

    def gain(self, size: int) -> torch.Tensor:
        """Gains between 0.5 and 2.5, all different and none of them near 1 by default."""
        return 0.5 + 2 * torch.rand(size, generator=self._generator)


def tokens(sizes: Sizes, seed: int = 0) -> torch.Tensor:
    """Ids of two rows, [2, 12]."""
    return torch.randint(0, sizes.vocab, (2, 12), generator=torch.Generator().manual_seed(seed))
