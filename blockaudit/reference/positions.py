"""Positions: which one a token has, and how attention is told: rotation, linear biases, buckets of distance.

Angles are taken in float32, as the models were trained, and in float64 where everything is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from blockaudit.reference.spec import AlibiSpec, InputsSpec, RotarySpec, yarn_length_factor

Table = tuple[Tensor, Tensor]


def working(dtype: torch.dtype) -> torch.dtype:
    """The dtype of angles and scores: at least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def position_rows(spec: InputsSpec, ids: Tensor, valid: Tensor) -> Tensor:
    """The row of the table of positions for every token. ids, valid: [B, S]; [B, S] back.

    transformers 5.24.0: models/opt (mask), models/roberta (tokens); padding falls on the row before the first.
    """
    if spec.positions == "index":
        return torch.arange(ids.shape[1], device=ids.device).expand(ids.shape) + spec.offset
    counted = (valid if spec.positions == "mask" else ids != spec.padding_id).long()
    return counted.cumsum(1) * counted - 1 + spec.offset


# -- rotary -----------------------------------------------------------------------------------------------------------


def rotary_table(spec: RotarySpec, positions: Tensor, dtype: torch.dtype) -> Table:
    """The cos and sin of position * frequency, [B, S, dim / 2] each. positions: [B, S] whole numbers."""
    work = working(dtype)
    frequencies, factor = rotary_frequencies(spec, int(positions.max()) + 1, work)
    angles = positions[..., None].to(work) * frequencies.to(positions.device)
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def rotary_frequencies(spec: RotarySpec, length: int, work: torch.dtype) -> tuple[Tensor, float]:
    """Radians per position of every pair, [dim / 2], and the factor of cos and sin, for a sequence of `length`."""
    return _SCALED[spec.type](spec, length, work)


def _plain(spec: RotarySpec, work: torch.dtype, theta: float | None = None) -> Tensor:
    """theta^(-2 i / dim) (Su et al. 2021, RoFormer, section 3.2.2)."""
    return 1.0 / ((spec.theta if theta is None else theta) ** (torch.arange(0, spec.dim, 2).to(work) / spec.dim))


def _default(spec: RotarySpec, length: int, work: torch.dtype) -> tuple[Tensor, float]:
    del length
    return _plain(spec, work), 1.0


def _linear(spec: RotarySpec, length: int, work: torch.dtype) -> tuple[Tensor, float]:
    """Positions divided by the factor (Chen et al. 2023, position interpolation)."""
    del length
    return _plain(spec, work) / (spec.factor or 1.0), 1.0


def _dynamic(spec: RotarySpec, length: int, work: torch.dtype) -> tuple[Tensor, float]:
    """The base grows with the length beyond the longest (NTK-aware scaling; Peng et al. 2023, section 3.1 and 3.3)."""
    factor, longest = spec.factor or 1.0, spec.max_length or 1
    grown = factor * max(length, longest) / longest - (factor - 1)
    return _plain(spec, work, spec.theta * grown ** (spec.dim / (spec.dim - 2))), 1.0


def _yarn(spec: RotarySpec, length: int, work: torch.dtype) -> tuple[Tensor, float]:
    """Fast pairs keep their frequency, slow ones are interpolated, a ramp lies between (Peng et al. 2023, 3.2, 3.4)."""
    del length
    factor, original = spec.factor or 1.0, spec.original_length or 1

    def pair_of(turns: float) -> float:
        """The pair that turns so often within the original length, as a real number."""
        return spec.dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))

    low, high = pair_of(spec.beta_fast), pair_of(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.dim - 1)
    high = high + 0.001 if low == high else high
    ramp = ((torch.arange(spec.dim // 2).to(work) - low) / (high - low)).clamp(0, 1)
    plain = _plain(spec, work)
    return plain / factor * ramp + plain * (1 - ramp), _yarn_factor(spec, factor)


def _yarn_factor(spec: RotarySpec, factor: float) -> float:
    if spec.attention_factor is not None:
        return spec.attention_factor
    if spec.mscale and spec.mscale_all_dim:
        return yarn_length_factor(factor, spec.mscale) / yarn_length_factor(factor, spec.mscale_all_dim)
    return yarn_length_factor(factor, 1.0)


def _longrope(spec: RotarySpec, length: int, work: torch.dtype) -> tuple[Tensor, float]:
    """A searched factor for every pair, one set for short and one for long sequences (Ding et al. 2024, LongRoPE)."""
    original, longest = spec.original_length or 1, spec.max_length or 1
    each = torch.tensor(spec.long_factor if length > original else spec.short_factor).to(work)
    factor = longest / original if spec.factor is None else spec.factor
    of_scores = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return _plain(spec, work) / each, of_scores if spec.attention_factor is None else spec.attention_factor


def _llama3(spec: RotarySpec, length: int, work: torch.dtype) -> tuple[Tensor, float]:
    """Slow pairs are divided by the factor, fast ones kept, those between mixed (Llama 3.1's published scaling)."""
    del length
    factor, original = spec.factor or 1.0, spec.original_length or 1
    low, high = spec.low_freq_factor or 1.0, spec.high_freq_factor or 4.0
    plain = _plain(spec, work)
    turns = original * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain / factor * (1 - kept) + plain * kept, 1.0


_SCALED: dict[str, Callable[[RotarySpec, int, torch.dtype], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}


def rotate(x: Tensor, table: Table, interleaved: bool) -> Tensor:
    """Turn the leading pairs: (a, b) -> (a cos - b sin, b cos + a sin). x: [B, H, S, D], table: [B, S, dim / 2]."""
    cos, sin = table[0][:, None], table[1][:, None]
    dim = 2 * cos.shape[-1]
    turned, rest = x[..., :dim], x[..., dim:]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        out = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        out = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return torch.cat((out, rest), -1) if rest.shape[-1] else out


# -- biases of the scores ---------------------------------------------------------------------------------------------


def alibi_slopes(heads: int) -> Tensor:
    """2^(-8 h / n) for n heads, a power of two; more take every second slope of 2 n (Press et al. 2022). [H]."""
    whole = 2 ** math.floor(math.log2(heads))
    base, finer = 2 ** (-8 / whole), 2 ** (-4 / whole)
    slopes = [base**h for h in range(1, whole + 1)] + [finer**h for h in range(1, 2 * (heads - whole), 2)]
    return torch.tensor(slopes[:heads], dtype=torch.float64)


def alibi_bias(spec: AlibiSpec, heads: int, valid: Tensor, dtype: torch.dtype) -> Tensor:
    """Slope * position of the key * scale, [B, H, 1, S]; a row's own position adds a constant. valid: [B, S]."""
    positions = ((valid.long().cumsum(1) - 1) * valid.long())[:, None, None, :]
    rounded = getattr(torch, spec.dtype) if spec.dtype else working(dtype)
    slopes = alibi_slopes(heads).to(torch.float32).to(valid.device, rounded)[None, :, None, None]
    return (slopes * positions).to(working(dtype)) * spec.scale


def distance_buckets(queries: int, keys: int, buckets: int, longest: int, causal: bool) -> Tensor:
    """T5's bucket of key position - query position, [Q, K]: half of them one distance wide, then logarithmic.

    Raffel et al. 2020, section 2.1; without `causal` half of the buckets are for keys that follow.
    """
    distance = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
    base = torch.zeros_like(distance)
    if causal:
        distance = (-distance).clamp(min=0)
    else:
        buckets //= 2
        base = (distance > 0).long() * buckets
        distance = distance.abs()
    exact = buckets // 2
    # In float32 like every implementation: at the border of two buckets the rounding decides.
    wide = exact + (torch.log(distance.float() / exact) / math.log(longest / exact) * (buckets - exact)).long()
    return base + torch.where(distance < exact, distance, wide.clamp(max=buckets - 1))
