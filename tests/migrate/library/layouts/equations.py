"""The formulas that the layouts share. States are [batch, tokens, width], heads [batch, tokens, heads, rows]."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, gain: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + epsilon) * gain (Zhang and Sennrich 2019)."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * gain


def layer_norm(x: torch.Tensor, gain: torch.Tensor, shift: torch.Tensor, epsilon: float) -> torch.Tensor:
    """(x - mean) / sqrt(var + epsilon) * gain + shift, the variance biased (Ba et al. 2016)."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + epsilon) * gain + shift


def _angles(tokens: int, rows: int, theta: float) -> torch.Tensor:
    """[tokens, rows / 2]: position * theta^(-2 i / rows) of pair i (Su et al. 2021)."""
    rates = theta ** (-torch.arange(0, rows, 2, dtype=torch.float32) / rows)
    return torch.outer(torch.arange(tokens, dtype=torch.float32), rates)


def turned(x: torch.Tensor, theta: float, *, pairs: str) -> torch.Tensor:
    """Heads, each pair of rows turned by its angle: rows 2 i and 2 i + 1 (`interleaved`), or i and i + rows / 2."""
    angles = _angles(x.shape[1], x.shape[-1], theta)[None, :, None, :]
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
