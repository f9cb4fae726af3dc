"""How far a candidate's value is from the reference's: one pass over both, settled when somebody asks.

Rows are taken some at a time, so that every step works in the processor's cache and no copy of a whole tensor is made.
Differences are taken in the wider of the two dtypes (float32 at least), a row's sum of squares in that dtype, and the
rows are added up in float64. Nothing waits for the device before `settle`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from blockaudit.records.conformance import Difference

# Elements that are compared at once: on a processor three such blocks of float32 lie in its cache, thread by thread.
_BLOCK_CPU, _BLOCK_DEVICE = 1 << 16, 1 << 24
_INT = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Bits of the exponent of the two dtypes that differences are taken in.
_EXPONENT = {torch.float32: 0x7F800000, torch.float64: 0x7FF0000000000000}
_norm = cast("Callable[..., Tensor]", torch.linalg.vector_norm)  # pyright: ignore[reportUnknownMemberType]
_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Rows:
    """What is kept of every row ([T]): sums of squares, largest errors, counts."""

    error: Tensor
    reference: Tensor
    candidate: Tensor
    max_abs: Tensor
    ulp: Tensor
    bits: Tensor
    non_finite: Tensor


@dataclass(frozen=True)
class Pending:
    """A comparison whose numbers are still on the device: 0-d float64 tensors, in the order of `_settled`."""

    numbers: Tensor
    asked_bits: bool

    def settle(self) -> Difference:
        return settle([self])[0]


def settle(pending: Sequence[Pending]) -> list[Difference]:
    """Every comparison with one transfer from the device."""
    if not pending:
        return []
    table: Any = torch.stack([p.numbers for p in pending])
    return [_settled(numbers, p.asked_bits) for numbers, p in zip(table.tolist(), pending, strict=True)]


def difference(
    candidate: Tensor,
    reference: Tensor,
    *,
    dtype: torch.dtype,
    valid: Tensor | None = None,
    bits_against: Tensor | None = None,
) -> Pending:
    """Compare `candidate` with `reference`, both [..., D], on the device that they lie on.

    dtype: the one judged, in whose last place `ulp` counts. valid: bool [...] (all axes but the last), false for rows
    that do not count, such as padding. bits_against: what `bits` are compared with once it is rounded to the
    candidate's dtype. Rows that do not count leave no trace, whatever they hold. Raises ValueError on unequal shapes.
    """
    if candidate.shape != reference.shape:
        raise ValueError(f"shapes {list(candidate.shape)} and {list(reference.shape)} cannot be compared")
    flat_c, flat_r, flat_b = _flat(candidate), _flat(reference), None if bits_against is None else _flat(bits_against)
    counts = None if valid is None else valid.reshape(-1).to(flat_c.device, torch.bool)
    rows = _rows(flat_c, flat_r, flat_b, dtype)
    return Pending(_reduced(rows, flat_c, flat_r, counts), bits_against is not None)


def _flat(x: Tensor) -> Tensor:
    return x.detach().reshape(-1, x.shape[-1])


def _rows(candidate: Tensor, reference: Tensor, bits: Tensor | None, dtype: torch.dtype) -> Rows:
    block = _BLOCK_CPU * torch.get_num_threads() if _answers_at_once(candidate) else _BLOCK_DEVICE
    step = max(1, block // max(candidate.shape[-1], 1))
    # One empty block where there are no rows at all, so that there is something to join.
    starts = range(0, max(candidate.shape[0], 1), step)
    parts = [
        _block(candidate[i : i + step], reference[i : i + step], None if bits is None else bits[i : i + step], dtype)
        for i in starts
    ]
    return Rows(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _block(candidate: Tensor, reference: Tensor, bits: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The fields of `Rows` for some rows."""
    c, r = _widened(candidate, reference)
    error = c - r
    squares = _squares(error), _squares(r), _squares(c)
    non_finite = torch.zeros_like(squares[0])
    at_once = _answers_at_once(candidate)
    if not at_once or not bool(torch.isfinite(squares[0] + squares[1] + squares[2]).all()):
        c, r, non_finite = _mended(candidate, reference)
        error = c - r
        squares = _squares(error), _squares(r), _squares(c)
    error.abs_()
    largest = error.amax(-1)
    ulp = largest if at_once and not bool(largest.any()) else _ulps(error, r, dtype)
    differing = torch.zeros_like(squares[0]) if bits is None else _mismatched(candidate, bits)
    return *squares, largest.double(), ulp.double(), differing, non_finite


def _answers_at_once(x: Tensor) -> bool:
    """Whether it costs nothing to ask if there is anything odd in `x`; a device would have to be waited for."""
    return x.device.type == "cpu"


def _widened(candidate: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(torch.promote_types(candidate.dtype, reference.dtype), torch.float32)
    return candidate.to(wide), reference.to(wide)


def _mended(candidate: Tensor, reference: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both in float64, in which no square overflows, zero where either is not finite; and how many stand alone."""
    c, r = candidate.double(), reference.double()
    sound, expected = torch.isfinite(c), torch.isfinite(r)
    # NaN against NaN, or the same infinity, is what the reference says too.
    alike = (c == r) | (torch.isnan(c) & torch.isnan(r))
    alone = (~(sound & expected) & ~alike).sum(-1).double()
    both = sound & expected
    return torch.where(both, c, 0), torch.where(both, r, 0), alone


def _squares(x: Tensor) -> Tensor:
    """Sum of squares of every row, as float64."""
    return _norm(x, dim=-1).double().square_()


def _ulps(error: Tensor, reference: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest error of every row in units in the last place that the reference has in `dtype`."""
    kind = torch.finfo(dtype)
    place = torch.bitwise_and(reference.view(_INT[reference.element_size()]), _EXPONENT[reference.dtype])
    # The power of two below |reference|; below the normal numbers of `dtype` its spacing stays what it is.
    unit = place.view(reference.dtype).clamp_min_(kind.tiny)
    return torch.div(error, unit, out=unit).amax(-1) / kind.eps


def _mismatched(candidate: Tensor, reference: Tensor) -> Tensor:
    """How many elements of every row are not, bit for bit, the reference rounded to the candidate's dtype."""
    kind = _INT[candidate.element_size()]
    rounded = reference.to(candidate.dtype).contiguous()
    return (candidate.contiguous().view(kind) != rounded.view(kind)).sum(-1).double()


def _reduced(rows: Rows, candidate: Tensor, reference: Tensor, counts: Tensor | None) -> Tensor:
    """Rows to one vector of numbers, in the order of `_settled`."""
    if counts is not None:
        rows = Rows(*(torch.where(counts, column, 0) for column in vars(rows).values()))
    count = torch.full_like(rows.error[:1].sum(), rows.error.shape[0]) if counts is None else counts.sum().double()
    elements = (count * candidate.shape[-1]).clamp_min(1)
    token = rows.max_abs.argmax() if rows.max_abs.numel() else torch.zeros_like(count, dtype=torch.long)
    worst_c, worst_r = _worst(candidate, reference, token)
    channel = torch.nan_to_num((worst_c - worst_r).abs(), 0.0, 0.0).argmax()
    error, reference_sum, candidate_sum = rows.error.sum(), rows.reference.sum(), rows.candidate.sum()
    return torch.stack(
        [
            _largest(rows.max_abs),
            _relative(error, reference_sum),
            _cosine(error, reference_sum, candidate_sum),
            _largest(rows.ulp).clamp_max(_LARGEST),
            rows.bits.sum() / elements,
            rows.non_finite.sum(),
            token.double(),
            channel.double(),
            _largest(_relative(rows.error, rows.reference)),
            (reference_sum / elements).sqrt(),
            torch.nan_to_num(worst_r.abs(), 0.0, 0.0).amax(),
            count * candidate.shape[-1],
        ]
    )


def _settled(numbers: list[float], asked_bits: bool) -> Difference:
    max_abs, rms_rel, cosine, ulp, bits, non_finite, token, channel, row_rel, rms, scale, elements = numbers
    return Difference(
        max_abs=max_abs, rms_rel=rms_rel, cosine=cosine, ulp=ulp, bits=bits if asked_bits else None,
        non_finite=int(non_finite), token=int(token), channel=int(channel), row_rel=row_rel, rms=rms, scale=scale,
        elements=int(elements),
    )  # fmt: skip


def _worst(candidate: Tensor, reference: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """The row of the largest error, without the device being asked which it is."""
    if candidate.numel() == 0:
        nothing = torch.zeros(1, dtype=torch.float64, device=candidate.device)
        return nothing, nothing
    row = token.reshape(1)
    return candidate.index_select(0, row).double().view(-1), reference.index_select(0, row).double().view(-1)


def _largest(column: Tensor) -> Tensor:
    return column.amax() if column.numel() else column.sum()


def _relative(error: Tensor, reference: Tensor) -> Tensor:
    """RMS(error) / RMS(reference) from sums of squares; 1 where the reference is zero and the candidate is not."""
    ratio = (error / torch.where(reference > 0, reference, 1)).sqrt()
    return torch.where(reference > 0, ratio, (error > 0).double())


def _cosine(error: Tensor, reference: Tensor, candidate: Tensor) -> Tensor:
    """1 - cos = (|e|^2 - (|c| - |r|)^2) / 2|c||r|: no digits are lost where the two hardly differ.

    Two zero vectors are alike (1); one alone has no direction (0).
    """
    product = (candidate.sqrt() * reference.sqrt()) * 2
    gap = (error - (candidate.sqrt() - reference.sqrt()).square()).clamp_min(0)
    cosine = 1 - (gap / torch.where(product > 0, product, 1)).clamp_max(2)
    return torch.where(product > 0, cosine, ((candidate + reference) == 0).double())
