"""Attention: softmax(scale * q k^T + bias) v, from the projections to the output (Vaswani et al. 2017, section 3.2).

Shapes: B examples, S queries, K keys, H query heads, G heads of keys and values, D coordinates of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blockaudit.reference.positions import Table, rotate, working
from blockaudit.reference.spec import AttentionSpec
from blockaudit.reference.tensors import Tensors

Heads = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Scene:
    """What attention sees besides the state: visible [B, 1, S, K], bias of scores, rotary table, memory [B, K, D]."""

    visible: Tensor
    bias: Tensor | None = None
    table: Table | None = None
    memory: Tensor | None = None


def attention(spec: AttentionSpec, tensors: Tensors, x: Tensor, layer: int, scene: Scene) -> Tensor:
    """The branch on x [B, S, d_model]: [B, S, d_model]. `layer` is its number in keys."""
    source = x if scene.memory is None else scene.memory
    q, k, v = latent_heads(spec, tensors, x, layer, scene) if spec.nope_dim else heads(spec, tensors, x, source)
    rotary = spec.rotary_of(layer)
    if scene.table is not None and rotary is not None and not spec.nope_dim:
        q, k = rotate(q, scene.table, rotary.interleaved), rotate(k, scene.table, rotary.interleaved)
    scale = spec.scale / (layer + 1) if spec.scale_by_layer else spec.scale
    sinks = tensors.get("sinks") if tensors.has("sinks") else None
    y = attend(q, k, v, scale, scene.visible, bias=scene.bias, softcap=spec.softcap, sinks=sinks)
    return tensors.linear("o", y.transpose(1, 2).flatten(2))


def heads(spec: AttentionSpec, tensors: Tensors, x: Tensor, source: Tensor) -> Heads:
    """Queries of x and keys and values of `source`: [B, H, S, D], [B, G, K, D], [B, G, K, Dv]."""
    q, k, v = projected(spec, tensors, x, source)
    if spec.clip is not None:
        q, k, v = (t.clamp(-spec.clip, spec.clip) for t in (q, k, v))
    q, k = _normed(tensors, "inner.q", q, spec.head_dim), _normed(tensors, "inner.k", k, spec.head_dim)
    return q.transpose(1, 2), k.transpose(1, 2), apart(v, spec.kv_heads, spec.value_dim).transpose(1, 2)


def _normed(tensors: Tensors, site: str, x: Tensor, head_dim: int) -> Tensor:
    """Rows x [B, S, H * D] by heads [B, S, H, D], normalised head by head, or before as one row where so declared."""
    width = tensors.norm_width(site)
    if width is not None and width == x.shape[-1] != head_dim:
        return apart(tensors.norm(site, x), -1, head_dim)
    return tensors.norm(site, apart(x, -1, head_dim))


def projected(spec: AttentionSpec, tensors: Tensors, x: Tensor, source: Tensor) -> Heads:
    """The projections q [B, S, H * D], k [B, K, G * D], v [B, K, G * Dv], whatever projections they share."""
    if not tensors.has("qkv"):
        q = tensors.linear("q", x)
        if tensors.has("kv"):
            k, v = tensors.linear("kv", source).chunk(2, -1)
            return q, k, v
        return q, tensors.linear("k", source), tensors.linear("v", source)
    y = tensors.linear("qkv", x)
    if spec.fused == "qkv":
        wide, narrow = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        return y[..., :wide], y[..., wide : wide + narrow], y[..., wide + narrow :]
    # By group: the queries of H / G heads, then their key and their value. By head is by group with G = H.
    groups = apart(y, spec.kv_heads, spec.heads // spec.kv_heads + 2, spec.head_dim)
    return groups[..., :-2, :].flatten(2), groups[..., -2, :].flatten(2), groups[..., -1, :].flatten(2)


def latent_heads(spec: AttentionSpec, tensors: Tensors, x: Tensor, layer: int, scene: Scene) -> Heads:
    """Queries, keys and values from latents; one turned key serves all heads (DeepSeek-V2 2024, section 2.1)."""
    nope, rope = spec.nope_dim or 0, spec.rope_dim or 0
    latent = tensors.norm("inner.q_a", tensors.linear("q_a", x)) if tensors.has("q_a") else None
    q = tensors.linear("q", x) if latent is None else tensors.linear("q_b", latent)
    q = apart(q, spec.heads, nope + rope).transpose(1, 2)
    joint = tensors.linear("kv_a", x)
    k_rope = joint[..., None, -rope:].transpose(1, 2)
    kv = tensors.linear("kv_b", tensors.norm("inner.kv_a", joint[..., :-rope]))
    kv = apart(kv, spec.heads, nope + spec.value_dim).transpose(1, 2)
    q_nope, q_rope, k_nope, v = q[..., :nope], q[..., nope:], kv[..., :nope], kv[..., nope:]
    rotary = spec.rotary_of(layer)
    if scene.table is not None and rotary is not None:
        q_rope = rotate(q_rope, scene.table, rotary.interleaved)
        k_rope = rotate(k_rope, scene.table, rotary.interleaved)
    k = torch.cat((k_nope, k_rope.expand(*k_nope.shape[:-1], rope)), -1)
    return torch.cat((q_nope, q_rope), -1), k, v


def apart(x: Tensor, *sizes: int) -> Tensor:
    """The last axis of x as several: [..., H * D] by heads [..., H, D]."""
    return x.reshape(*x.shape[:-1], *sizes)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    visible: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """[B, H, S, Dv] from q [B, H, S, D], k [B, G, K, D], v [B, G, K, Dv]; bias broadcasts to [B, H, S, K].

    A cap c bounds scores by c * tanh(scores / c) (Gemma 2, 2024). A sink [H] is a score that takes part in the softmax
    and attends nothing (gpt-oss, 2025). Scores and softmax are at least float32.
    """
    shared = q.shape[1] // k.shape[1]
    if shared > 1:
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    scores = (q @ k.transpose(-1, -2)).to(working(q.dtype)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    # Finite, so that a row that sees nothing stays finite too.
    scores = torch.where(visible, scores, torch.finfo(scores.dtype).min)
    if sinks is not None:
        sink = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat((scores, sink), -1).softmax(-1)[..., :-1].to(v.dtype) @ v
    return scores.softmax(-1).to(v.dtype) @ v


def visible(valid: Tensor, queries: int, causal: bool, window: int | None) -> Tensor:
    """Which keys a query sees, [B, 1, S, K]: valid ones, none that follow it, the last `window` up to itself.

    valid: [B, K]. Without `causal` a window reaches as far to either side.
    """
    keys = valid.shape[1]
    behind = torch.arange(queries, device=valid.device)[:, None] - torch.arange(keys, device=valid.device)[None, :]
    seen = behind >= 0 if causal else torch.ones_like(behind, dtype=torch.bool)
    if window is not None:
        seen = seen & (behind.abs() < window)
    return seen & valid[:, None, None, :]
