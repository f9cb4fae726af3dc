"""Operators that add and do something else at once, each recorded as the plain sum that it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_aten: Any = torch.ops.aten
# A sum over more parts than this is a reduction, not a sum of branches.
_MOST_PARTS = 8


def _addmm(base: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    product = torch.mm(a, b)
    if base.shape != product.shape:
        return NotImplemented  # a bias
    return torch.add(base if beta == 1 else base * beta, product, alpha=alpha)


def _baddbmm(base: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    product = torch.bmm(a, b)
    if base.shape != product.shape:
        return NotImplemented
    return torch.add(base if beta == 1 else base * beta, product, alpha=alpha)


def _addcmul(base: Any, a: Any, b: Any, *, value: float = 1) -> Any:
    return torch.add(base, a * b, alpha=value)


def _addcdiv(base: Any, a: Any, b: Any, *, value: float = 1) -> Any:
    return torch.add(base, a / b, alpha=value)


def _lerp(start: Any, end: Any, weight: Any) -> Any:
    return start * (1 - weight) + end * weight


def _sub(a: Any, b: Any, *, alpha: float = 1) -> Any:
    return torch.add(a, b, alpha=-alpha)


def _copy(base: Any, source: Any, non_blocking: bool = False) -> Any:
    del non_blocking
    return _aten.alias(source) if base.shape == source.shape and base.dtype == source.dtype else NotImplemented


def _slice_scatter(base: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    del dim, start, end, step
    return _aten.alias(source) if base.shape == source.shape else NotImplemented


def _sum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """A sum over a leading axis of a few parts: stacked branches."""
    if not dim or len(dim) != 1 or keepdim or dtype is not None or x.dim() < 4 or dim[0] != 0:
        return NotImplemented
    if not 1 < x.shape[0] <= _MOST_PARTS:
        return NotImplemented
    parts = torch.unbind(x, 0)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


FUSED: dict[Any, Callable[..., Any]] = {
    _aten.addmm.default: _addmm,
    _aten.baddbmm.default: _baddbmm,
    _aten.addcmul.default: _addcmul,
    _aten.addcdiv.default: _addcdiv,
    _aten.lerp.Scalar: _lerp,
    _aten.lerp.Tensor: _lerp,
    _aten.sub.Tensor: _sub,
    _aten.copy.default: _copy,
    _aten.slice_scatter.default: _slice_scatter,
    _aten.sum.dim_IntList: _sum,
}
