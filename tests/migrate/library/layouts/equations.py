"""The formulas that the layouts share. States are [batch, tokens, width], heads [batch, tokens, heads, rows]."""

from __future__ import annotations

import math

import torch


def rms_norm(x: torch.Tensor, gain: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + epsilon) * gain (Zhang and Sennrich 2019)."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * gain


def layer_norm(x: torch.Tensor, gain: torch.Tensor, shift: torch.Tensor, epsilon: float) -> torch.Tensor:
    """(x - mean) / sqrt(var + epsilon) * gain + shift, the variance biased (Ba et al. 2016)."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + epsilon) * gain + shift


def stretched(rates: torch.Tensor, factor: float, low: float, high: float, length: int) -> torch.Tensor:
    """Rates as Llama 3.1 publishes them: slow pairs divided by `factor`, fast ones kept, those between mixed."""
    turns = length * rates / (2 * math.pi)
    mixed = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - mixed) * rates / factor + mixed * rates


def turned(
    x: torch.Tensor, theta: float, *, pairs: str, stretch: tuple[float, float, float, float] | None = None
) -> torch.Tensor:
    """Heads, each pair of rows turned by position * theta^(-2 i / rows) (Su et al. 2021).

    Pair i is rows 2 i and 2 i + 1 (`interleaved`), or i and i + rows / 2. `stretch`: what `stretched` takes.
    """
    rates = theta ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float32) / x.shape[-1])
    rates = rates if stretch is None else stretched(rates, *stretch)
    angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float32), rates)[None, :, None, :]
    half = x.shape[-1] // 2
    a, b = (x[..., 0::2], x[..., 1::2]) if pairs == "interleaved" else (x[..., :half], x[..., half:])
    first, second = a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()
    if pairs == "interleaved":
        return torch.stack([first, second], -1).flatten(-2)
    return torch.cat([first, second], -1)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = True) -> torch.Tensor:
    """softmax(q k^T / sqrt(rows)) v, head by head, heads side by side. Each k and v serves its group of q heads."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bqhr,bkhr->bhqk", q, k) * q.shape[-1] ** -0.5
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return torch.einsum("bhqk,bkhr->bqhr", scores.softmax(-1), v).flatten(2)


def heads(x: torch.Tensor, count: int) -> torch.Tensor:
    """[batch, tokens, width] as [batch, tokens, count, width / count]."""
    return x.unflatten(-1, (count, -1))
