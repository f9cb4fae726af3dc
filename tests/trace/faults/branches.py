"""Faults inside branches: masks, positions, heads, biases, activations, experts, numbers that are none."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN

from tests.trace.faults.patch import forward, load
from tests.trace.faults.table import fault

A, M = "self_attention", "mlp"


def _own_rotary(attention: Any, change: Any) -> None:
    """One attention that is given other cosines and sines."""
    own = attention.forward

    def call(self: Any, *args: Any, position_embeddings: Any = None, **kw: Any) -> Any:
        return own(*args, position_embeddings=change(*position_embeddings), **kw)

    forward(attention, call)


@fault("llama", f"layers.1.{A}.branch", "causal-leak", f"decoder.{A}.kind", "1", value="self_attention")
def mask_lost(source, *, device, dtype):
    m = load(source, device, dtype)
    attention = m.model.layers[1].self_attn
    own = attention.forward

    def call(self: Any, *args: Any, attention_mask: Any = None, **kw: Any) -> Any:
        # The last row sees every token that is no padding; now all rows do.
        return own(*args, attention_mask=attention_mask[..., -1:, :].expand_as(attention_mask), **kw)

    forward(attention, call)
    return m


@fault("gemma2", f"layers.0.{A}.branch", "", f"decoder.{A}.window", "0")
def window_ignored(source, *, device, dtype):
    m = load(source, device, dtype)
    own = m.model.layers[0].self_attn.forward

    def call(self: Any, *args: Any, attention_mask: Any = None, **kw: Any) -> Any:
        # Of the last row every token is behind; a window of four hides none that padding does not.
        least = torch.finfo(attention_mask.dtype).min
        padded = torch.diagonal(attention_mask, dim1=-2, dim2=-1)[:, :, None, :]
        return own(
            *args, attention_mask=(padded + torch.full_like(attention_mask, least).triu(1)).clamp_min(least), **kw
        )

    forward(m.model.layers[0].self_attn, call)
    return m


@fault("llama", f"layers.0.{A}.branch", "", f"decoder.{A}.rotary.theta", "0-2", value=500000)
def rope_theta_wrong(source, *, device, dtype):
    m = load(source, device, dtype)
    dim = m.config.head_dim
    m.model.rotary_emb.inv_freq = 1.0 / (500000.0 ** (torch.arange(0, dim, 2).float() / dim)).to(device)
    return m


@fault("llama", f"layers.1.{A}.branch", "", f"decoder.{A}.rotary.pairing", "1", value="interleaved")
def rope_pairing_wrong(source, *, device, dtype):
    m = load(source, device, dtype)
    layer = m.model.layers[1].self_attn

    def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        c, s = (t[..., : t.shape[-1] // 2].repeat_interleave(2, -1).unsqueeze(1) for t in (cos, sin))
        other = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
        return x * c + other * s

    _attend_with(layer, turned)
    return m


def _attend_with(attention: Any, turned: Any) -> None:
    """LLaMA's attention written out, with another rotation of queries and keys."""

    def call(self: Any, hidden_states: Any, position_embeddings: Any = None, attention_mask: Any = None, **kw: Any):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (p(hidden_states).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = turned(q, *position_embeddings), turned(k, *position_embeddings)
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
        scores = q @ k.transpose(2, 3) * self.scaling
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
        y = (weights @ v).transpose(1, 2).reshape(*hidden_states.shape[:-1], -1)
        return self.o_proj(y), weights

    forward(attention, call)


@fault("llama", f"layers.1.{A}.branch", "")
def positions_off_by_one_head(source, *, device, dtype):
    """Keys turned one position less than queries: nothing that the manifest has a field for."""
    m = load(source, device, dtype)

    def call(self: Any, hidden_states: Any, position_embeddings: Any = None, attention_mask: Any = None, **kw: Any):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (p(hidden_states).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))

        def half(x: torch.Tensor) -> torch.Tensor:
            return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)

        def back(x: torch.Tensor) -> torch.Tensor:
            return torch.cat((x[:, :, :1], x[:, :, :-1]), 2)

        cos, sin = (t.unsqueeze(1) for t in position_embeddings)
        q = q * cos + half(q) * sin
        k = k * back(cos) + half(k) * back(sin)
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
        scores = q @ k.transpose(2, 3) * self.scaling + attention_mask
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(*hidden_states.shape[:-1], -1)
        return self.o_proj(y), None

    forward(m.model.layers[1].self_attn, call)
    return m


@fault("qwen2", f"layers.1.{A}.branch", "branch-bias-missing", f"decoder.{A}.bias.q", "1", value=False)
def bias_of_q_lost(source, *, device, dtype):
    m = load(source, device, dtype)
    with torch.no_grad():
        m.model.layers[1].self_attn.q_proj.bias.zero_()
    return m


@fault("gpt2", f"layers.0.{M}.branch", "", f"decoder.{M}.activation", "0-2", value="gelu")
def gelu_erf_for_tanh(source, *, device, dtype):
    m = load(source, device, dtype)
    for block in m.transformer.h:
        block.mlp.act = nn.GELU()
    return m


@fault("t5", f"encoder.layers.1.{M}.branch", "", f"encoder.{M}.activation", "1", value="silu")
def activation_wrong_in_t5(source, *, device, dtype):
    m = load(source, device, dtype)
    m.encoder.block[1].layer[1].DenseReluDense.act = ACT2FN["silu"]
    return m


@fault("llama", f"layers.2.{M}.branch", "", f"decoder.{M}.gate", "2")
def gate_and_up_exchanged(source, *, device, dtype):
    m = load(source, device, dtype)
    mlp = m.model.layers[2].mlp
    mlp.gate_proj, mlp.up_proj = mlp.up_proj, mlp.gate_proj
    return m


@fault("llama", f"layers.1.{A}.branch", "", f"decoder.{A}.scale", "1")
def scores_not_scaled(source, *, device, dtype):
    m = load(source, device, dtype)
    m.model.layers[1].self_attn.scaling = 1.0
    return m


@fault("granite", f"layers.0.{A}.branch", "", f"decoder.{A}.scale", "0-2")
def attention_multiplier_dropped(source, *, device, dtype):
    m = load(source, device, dtype)
    for layer in m.model.layers:
        layer.self_attn.scaling = 1 / math.sqrt(layer.self_attn.head_dim)
    return m


@fault("gemma2", f"layers.1.{A}.branch", "logit-scale-mismatch", f"decoder.{A}.softcap", "1")
def attention_softcap_dropped(source, *, device, dtype):
    m = load(source, device, dtype)
    m.model.layers[1].self_attn.attn_logit_softcapping = None
    return m


@fault("qwen3_moe", f"layers.0.{M}.branch", "", f"decoder.{M}[moe].routing.normalise", "0-2", value=True)
def routing_normalised(source, *, device, dtype):
    m = load(source, device, dtype)
    for layer in m.model.layers:
        layer.mlp.gate.norm_topk_prob = True
    return m


@fault("qwen3_moe", f"layers.1.{M}.branch", "", f"decoder.{M}[moe].routing.top_k", "1", value=1)
def one_expert_too_few(source, *, device, dtype):
    m = load(source, device, dtype)
    m.model.layers[1].mlp.gate.top_k = 1
    return m


@fault("llama", f"layers.1.{M}.branch", "", also="trace-non-finite")
def nan_in_one_layer(source, *, device, dtype):
    m = load(source, device, dtype)
    mlp = m.model.layers[1].mlp
    own = mlp.forward
    mlp.forward = lambda x: own(x) + torch.where(torch.arange(x.shape[-1]) == 3, torch.nan, 0.0).to(x.dtype)
    return m


@fault("llama", f"layers.1.{M}.branch", "")
def half_of_the_mlp(source, *, device, dtype):
    """One shard of two, never reduced."""
    m = load(source, device, dtype)

    def call(self: Any, x: torch.Tensor) -> torch.Tensor:
        h = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        keep = torch.arange(h.shape[-1]) < h.shape[-1] // 2
        return self.down_proj(torch.where(keep, h, torch.zeros_like(h)))

    forward(m.model.layers[1].mlp, call)
    return m
