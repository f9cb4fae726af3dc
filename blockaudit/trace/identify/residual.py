"""An add, from its inputs and its sum: what the shortcut and each update were multiplied by, and what else was done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from blockaudit.trace.identify.norms import explanations, rows_of
from blockaudit.trace.identify.rounding import unit
from blockaudit.trace.identify.scale import CLEAR, PLAIN, as_stored, identify_dropout
from blockaudit.trace.identify.solved import Solved, number_in, unknown
from blockaudit.trace.identify.typed import eigh, length, numbers, pinv

SHORTCUT = "shortcut"
# Standard errors to each side: rounding is uniform and no larger than assumed, so this is more than 99.9 %.
_SIGMAS = 4.0
# The least eigenvalue of the columns' cosines at which they are told apart.
_COLLINEAR = 1e-6
_ROWS = 6
# What the solution itself may be off.
_FLOAT = 256 * unit(torch.float64)


@dataclass(frozen=True)
class _Fit:
    """Coefficients [k] or [D, k] with their standard errors; `explained`: every element is within its rounding."""

    values: Tensor
    errors: Tensor
    explained: bool


def identify_residual(
    shortcut: Tensor,
    updates: Mapping[str, Tensor],
    total: Tensor,
    *,
    dtype: torch.dtype,
    normalised: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> list[Solved]:
    """Fields of total = a * shortcut + sum of b_i * update_i, all [..., D] as captured in `dtype`.

    `shortcut.scale` and `NAME.scale` (a number, or one per channel), `shortcut.source` (`state` or `normalised`, where
    the normalised state is given), `placement` (`post_add`: the sum went through a norm, tried with `weight` and
    `bias`; else `none`), `dropout` (p). What several readings give equally well is unknown.
    """
    names = (SHORTCUT, *updates)
    columns, result = _flat([shortcut, *updates.values()]), _flat([total])[0]
    finite = torch.isfinite(result).all(-1) & torch.isfinite(columns).all(-1).all(0)
    columns, result = columns[:, finite], result[finite]
    if not len(result):
        return [unknown(f"{name}.scale", "no finite row") for name in names]
    state = _solve(columns, result, dtype)
    other = None if normalised is None else _instead(columns, _flat([normalised])[0][finite], result, dtype)
    source = _source(state, other)
    if state.explained or other is None or not other[1].explained:
        best = state
    else:
        columns, best = other
    tied = _tied(columns, names)
    if best.explained:
        made = [_coefficient(name, i, best, dtype, tied.get(name)) for i, name in enumerate(names)]
        return [
            *made,
            source,
            Solved("placement", "none", evidence="the sum is plain"),
            _idle(best, columns, result, dtype),
        ]
    return _otherwise(names, columns, result, dtype, source, (weight, bias))


def _flat(values: list[Tensor]) -> Tensor:
    return torch.stack([v.detach().cpu().double().reshape(-1, v.shape[-1]) for v in values])


def _doubt(columns: Tensor, result: Tensor, values: Tensor, dtype: torch.dtype) -> Tensor:
    """How far rounding may put each element of the sum off: the terms, the partial sums and the sum are rounded."""
    terms = _times(columns, values).abs().sum(0)
    # In float64 the solution itself is no more exact than what it explains.
    fine = 16 * unit(dtype) if dtype == torch.float64 else unit(torch.float32)
    return unit(dtype) * (result.abs() + terms) + 4 * fine * terms


def _solve(columns: Tensor, result: Tensor, dtype: torch.dtype) -> _Fit:
    """One number per column where that explains every element, else one per channel."""
    fit = _scalars(columns, result, dtype)
    if fit.explained or result.shape[0] < _ROWS + len(columns):
        return fit
    # Channel by channel: each is a problem of its own, [D, N, k].
    doubt = _doubt(columns, result, torch.ones(len(columns), dtype=torch.float64), dtype).clamp_min(1e-300)
    each = _least_squares((columns / doubt).permute(2, 1, 0), (result / doubt).T)
    wide = _Fit(*each, _explained(columns, result, *each, dtype))
    return wide if wide.explained else fit


def _scalars(columns: Tensor, result: Tensor, dtype: torch.dtype) -> _Fit:
    values = torch.ones(len(columns), dtype=torch.float64)
    errors = values
    for _ in range(2):  # the second time with the rounding that the first coefficients imply
        doubt = _doubt(columns, result, values, dtype).clamp_min(1e-300)
        values, errors = _least_squares((columns / doubt).flatten(1).T, (result / doubt).flatten())
    return _Fit(values, errors, _explained(columns, result, values, errors, dtype))


def _least_squares(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Solution and standard errors of a z = b, a [..., M, k], errors of b no larger than 1."""
    size = length(a, dim=-2, keepdim=True).clamp_min(1e-300)
    gram = pinv((a / size).mT @ (a / size), rtol=1e-14, hermitian=True)
    values, left = torch.zeros_like(size.mT), b.unsqueeze(-1)
    for _ in range(2):  # once more on what is left, for what the normal equations lose
        values = values + (gram @ ((a / size).mT @ left)) / size.mT
        left = b.unsqueeze(-1) - a @ values
    errors = gram.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt() / size.squeeze(-2)
    return values.squeeze(-1), errors


def _explained(columns: Tensor, result: Tensor, values: Tensor, errors: Tensor, dtype: torch.dtype) -> bool:
    made = _times(columns, values).sum(0)
    allowed = 1.25 * _doubt(columns, result, values, dtype) + _SIGMAS * _times(columns, errors).abs().sum(0)
    return bool(((made - result).abs() <= allowed).all())


def _times(columns: Tensor, values: Tensor) -> Tensor:
    """Columns [k, N, D] times one number each, [k], or one per channel, [D, k]."""
    return columns * (values.T[:, None] if values.dim() == 2 else values[:, None, None])


def _instead(columns: Tensor, normalised: Tensor, result: Tensor, dtype: torch.dtype) -> tuple[Tensor, _Fit]:
    swapped = torch.cat((normalised[None], columns[1:]))
    return swapped, _solve(swapped, result, dtype)


def _source(state: _Fit, other: tuple[Tensor, _Fit] | None) -> Solved:
    field = "shortcut.source"
    if other is None:
        return unknown(field, "the normalised state was not given")
    if state.explained and other[1].explained:
        return unknown(field, "the state and the normalised state explain the sum equally well")
    if not state.explained and not other[1].explained:
        return unknown(field, "neither the state nor the normalised state explains the sum")
    return Solved(field, "state" if state.explained else "normalised", evidence="the other does not explain the sum")


def _tied(columns: Tensor, names: tuple[str, ...]) -> dict[str, str]:
    """Columns whose coefficient no sum can tell: all zero, or a combination of others."""
    flat = columns.flatten(1)
    size = length(flat, dim=1)
    tied = {name: "it is zero everywhere" for name, n in zip(names, numbers(size), strict=True) if n == 0}
    unit_columns = flat / size.clamp_min(1e-300)[:, None]
    values, vectors = eigh(unit_columns @ unit_columns.T)
    for value, vector in zip(numbers(values), vectors.T, strict=True):
        if value < _COLLINEAR:
            near = [name for name, part in zip(names, numbers(vector), strict=True) if abs(part) > 0.05]
            for name in near if len(near) > 1 else ():
                tied.setdefault(name, f"collinear: {', '.join(near)}")
    return tied


def _coefficient(name: str, index: int, fit: _Fit, dtype: torch.dtype, why: str | None) -> Solved:
    field = f"{name}.scale"
    if why is not None:
        return unknown(field, why)
    values, errors = fit.values[..., index], _SIGMAS * fit.errors[..., index] + _FLOAT
    if values.dim() == 0:
        low, high = as_stored(float(values - errors), float(values + errors), dtype)
        return Solved(field, number_in(low, high, PLAIN), (low, high), "one number explains every element")
    low, high = float((values - errors).max()), float((values + errors).min())
    if low <= high:
        low, high = as_stored(low, high, dtype)
        return Solved(field, number_in(low, high, PLAIN), (low, high), "one number fits every channel")
    ends = float((values - errors).min()), float((values + errors).max())
    return Solved(field, tuple(numbers(values)), ends, "one number per channel explains every element")


def _idle(fit: _Fit, columns: Tensor, result: Tensor, dtype: torch.dtype) -> Solved:
    """No dropout is active where the sum is explained with every element that stands clear of the rounding in it."""
    if fit.values.dim() > 1:
        return unknown("dropout", "a number per channel was solved from the same elements")
    terms, doubt = _times(columns, fit.values), _doubt(columns, result, fit.values, dtype)
    clear = [int((term.abs() > 4 * doubt).sum()) for term in terms[1:]]
    if not clear or min(clear) < CLEAR:
        return unknown("dropout", "too few elements of the update stand clear of the rounding")
    return Solved("dropout", 0.0, (0.0, 0.0), "every element is added")


def _otherwise(
    names: tuple[str, ...], columns: Tensor, result: Tensor, dtype: torch.dtype, source: Solved,
    vectors: tuple[Tensor | None, Tensor | None],
) -> list[Solved]:  # fmt: skip
    """A sum that is not plain: dropout active in the update, or a norm behind the add."""
    if len(names) == 2:
        off = unit(dtype) * (result.abs() + columns[0].abs())
        dropout = identify_dropout(columns[1], result - columns[0], dtype=dtype, doubt=off)
        if dropout.value:
            one = [Solved(f"{name}.scale", 1.0, (1.0, 1.0), "what dropout leaves is explained") for name in names]
            return [*one, source, Solved("placement", "none", evidence="the sum is plain"), dropout]
    added = columns[0].to(dtype)
    for column in columns[1:]:
        added = added + column.to(dtype)
    found = explanations(rows_of(added, result.to(dtype), *vectors, dtype))
    behind = "behind a norm only the ratio of the terms counts"
    if found and all(e.divisor is not None for e in found):
        scales = [unknown(f"{name}.scale", behind) for name in names]
        placement = Solved("placement", "post_add", evidence="the sum went through a norm")
        return [*scales, source, placement, unknown("dropout", behind)]
    reason = "no combination of the terms explains the sum"
    fields = (*(f"{name}.scale" for name in names), "placement", "dropout")
    return [source, *(unknown(field, reason) for field in fields)]
