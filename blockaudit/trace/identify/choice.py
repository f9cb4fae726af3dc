"""Which of several stored tensors the rows were really multiplied by."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from blockaudit.records.norm_spec import NormSpec
from blockaudit.trace.identify.norms import explains, rows_of
from blockaudit.trace.identify.rounding import unit


def fitting_weights(
    x: Tensor,
    y: Tensor,
    spec: NormSpec,
    weights: Mapping[str, Tensor],
    *,
    dtype: torch.dtype,
    biases: Mapping[str, Tensor] | None = None,
) -> tuple[str, ...]:
    """Names of all vectors under which `spec` gives y of x ([..., D], captured in `dtype`) bit for bit.

    `biases`: the bias that belongs to each name, where the norm has one.
    """
    own = biases or {}
    return tuple(name for name, w in weights.items() if explains(rows_of(x, y, w, own.get(name), dtype), spec))


def which_weight(
    x: Tensor,
    y: Tensor,
    spec: NormSpec,
    weights: Mapping[str, Tensor],
    *,
    dtype: torch.dtype,
    biases: Mapping[str, Tensor] | None = None,
) -> str | None:
    """The one vector that fits; None where none does or several do (equal vectors cannot be told apart)."""
    names = fitting_weights(x, y, spec, weights, dtype=dtype, biases=biases)
    return names[0] if len(names) == 1 else None


def which_matrix(
    x: Tensor,
    y: Tensor,
    matrices: Mapping[str, Tensor],
    *,
    dtype: torch.dtype,
    biases: Mapping[str, Tensor] | None = None,
    layout: str = "out_in",
) -> str | None:
    """The one matrix with y = x W^T + b to rounding, [..., in] -> [..., out] (`in_out`: x W), or None."""
    rows, result = x.reshape(-1, x.shape[-1]).double(), y.reshape(-1, y.shape[-1]).double()
    size = float(result.square().mean().sqrt())
    names: list[str] = []
    for name, stored in matrices.items():
        matrix = stored.double() if layout == "in_out" else stored.double().T
        if matrix.shape != (rows.shape[-1], result.shape[-1]):
            continue
        found = rows @ matrix
        if biases is not None and name in biases:
            found = found + biases[name].double()
        # Sums are taken in float32 at least; sums that cancel keep the error of their terms.
        terms = float((rows.abs() @ matrix.abs()).square().mean().sqrt())
        work = unit(torch.float64 if dtype == torch.float64 else torch.float32)
        allowed = 2 * unit(dtype) * size + 8 * work * terms
        if size > 0 and float((found - result).square().mean().sqrt()) <= allowed:
            names.append(name)
    return names[0] if len(names) == 1 else None
