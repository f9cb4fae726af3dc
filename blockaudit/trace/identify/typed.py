"""Functions of torch whose stubs leave their types open."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

unique = cast("Callable[..., Tensor]", torch.unique)  # pyright: ignore[reportUnknownMemberType]
ndtr = cast("Callable[[Tensor], Tensor]", torch.special.ndtr)  # pyright: ignore[reportUnknownMemberType]
pinv = cast("Callable[..., Tensor]", torch.linalg.pinv)  # pyright: ignore[reportUnknownMemberType]
eigh = cast("Callable[[Tensor], tuple[Tensor, Tensor]]", torch.linalg.eigh)  # pyright: ignore[reportUnknownMemberType]
length = cast("Callable[..., Tensor]", torch.linalg.vector_norm)  # pyright: ignore[reportUnknownMemberType]


def numbers(values: Tensor) -> list[float]:
    """A vector as Python floats."""
    return [float(v) for v in values]
