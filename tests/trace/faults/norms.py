"""Faults in norms: epsilon, formula, offset, casts, family, and which weights a norm runs with."""

from __future__ import annotations

from typing import Any

import torch

from tests.trace.faults.patch import centred, forward, load, normed, rms
from tests.trace.faults.table import fault

A, M = "self_attention", "mlp"
EPSILON = "epsilon-mismatch"


@fault("llama", f"layers.1.{A}.norm_in", EPSILON, f"decoder.{A}.norm_in.epsilon", "1", value=1e-5)
def eps_one_layer(source, *, device, dtype):
    m = load(source, device, dtype)
    m.model.layers[1].input_layernorm.variance_epsilon = 1e-5
    return m


@fault("llama", f"layers.0.{M}.norm_in", EPSILON, f"decoder.{M}.norm_in.epsilon", "0-2", value=1e-5)
def eps_one_site(source, *, device, dtype):
    m = load(source, device, dtype)
    for layer in m.model.layers:
        layer.post_attention_layernorm.variance_epsilon = 1e-5
    return m


@fault("qwen3", f"layers.0.{A}.norm_in", EPSILON, f"decoder.{A}.norm_in.epsilon", "0-2", value=1e-5)
def eps_everywhere(source, *, device, dtype):
    """A code default in place of the config's value, in the norms inside attention too."""
    m = load(source, device, dtype)
    for module in m.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-5
    return m


@fault("llama", f"layers.2.{A}.norm_in", EPSILON, f"decoder.{A}.norm_in.epsilon", "2", value=1e-5)
def eps_hard_coded(source, *, device, dtype):
    """A literal in a kernel, at both norms of one layer, whatever is passed."""
    m = load(source, device, dtype)
    for norm in (m.model.layers[2].input_layernorm, m.model.layers[2].post_attention_layernorm):
        normed(norm, lambda self, x: self.weight * rms(x.float(), 1e-5).to(x.dtype))
    return m


@fault("llama", "final_norm", EPSILON, "decoder.final_norm.epsilon", "", value=1e-2)
def eps_final_norm(source, *, device, dtype):
    m = load(source, device, dtype)
    m.model.norm.variance_epsilon = 1e-2
    return m


@fault("bert", "embed_norm", EPSILON, "encoder.embed_norm.epsilon", "", value=1e-5)
def eps_embed_norm(source, *, device, dtype):
    m = load(source, device, dtype)
    m.bert.embeddings.LayerNorm.eps = 1e-5
    return m


@fault("bert", f"layers.1.{A}.state", EPSILON, f"encoder.{A}.norm_post.epsilon", "1", value=1e-5)
def eps_post_add(source, *, device, dtype):
    m = load(source, device, dtype)
    m.bert.encoder.layer[1].attention.output.LayerNorm.eps = 1e-5
    return m


@fault("gemma2", f"layers.1.{A}.norm_out", EPSILON, f"decoder.{A}.norm_out.epsilon", "1", value=1e-4)
def eps_output_norm(source, *, device, dtype):
    m = load(source, device, dtype)
    m.model.layers[1].post_attention_layernorm.eps = 1e-4
    return m


@fault(
    "t5",
    "decoder.layers.1.cross_attention.norm_in",
    EPSILON,
    "decoder.cross_attention.norm_in.epsilon",
    "1",
    value=1e-3,
)
def eps_cross_attention(source, *, device, dtype):
    m = load(source, device, dtype)
    m.decoder.block[1].layer[1].layer_norm.variance_epsilon = 1e-3
    return m


@fault("llama12", f"layers.7.{A}.norm_in", EPSILON, f"decoder.{A}.norm_in.epsilon", "7", value=1e-6, dtype="bfloat16")
def eps_one_of_twelve_bf16(source, *, device, dtype):
    m = load(source, device, dtype)
    m.model.layers[7].input_layernorm.variance_epsilon = 1e-6
    return m


@fault(
    "llama", f"layers.1.{M}.norm_in", "norm-formula-mismatch", f"decoder.{M}.norm_in.epsilon_location", "1",
    value="outside",
)  # fmt: skip
def eps_outside_the_root(source, *, device, dtype):
    m = load(source, device, dtype)
    normed(
        m.model.layers[1].post_attention_layernorm,
        lambda self, x: self.weight * x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.variance_epsilon),
    )
    return m


def _unbiased(self: Any, x: torch.Tensor) -> torch.Tensor:
    z = x - x.mean(-1, keepdim=True)
    return self.weight * z * torch.rsqrt(x.var(-1, keepdim=True, correction=1) + self.eps) + self.bias


@fault(
    "gpt2", f"layers.1.{A}.norm_in", "norm-formula-mismatch", f"decoder.{A}.norm_in.variance_correction", "1", value=1
)
def unbiased_variance(source, *, device, dtype):
    m = load(source, device, dtype)
    normed(m.transformer.h[1].ln_1, _unbiased)
    return m


@fault(
    "gpt2", f"layers.0.{M}.norm_in", "norm-formula-mismatch", f"decoder.{M}.norm_in.family", "0",
    value="layernorm_std_eps", also="norm-family-mismatch",
)  # fmt: skip
def tutorial_layernorm(source, *, device, dtype):
    """Gain * (x - mean) / (std + eps) + bias, std of n - 1."""
    m = load(source, device, dtype)
    normed(
        m.transformer.h[0].ln_2,
        lambda self, x: (
            self.weight * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True, correction=1) + self.eps)
            + self.bias
        ),
    )
    return m


@fault("llama", f"layers.0.{A}.norm_in", "scale-offset-mismatch", f"decoder.{A}.norm_in.scale_offset", "0", value=1)
def offset_invented(source, *, device, dtype):
    m = load(source, device, dtype)
    normed(
        m.model.layers[0].input_layernorm,
        lambda self, x: (1 + self.weight) * rms(x.float(), self.variance_epsilon).to(x.dtype),
    )
    return m


@fault("gemma2", f"layers.2.{M}.norm_in", "scale-offset-mismatch", f"decoder.{M}.norm_in.scale_offset", "2", value=0)
def offset_lost(source, *, device, dtype):
    m = load(source, device, dtype)
    normed(
        m.model.layers[2].pre_feedforward_layernorm,
        lambda self, x: (rms(x.float(), self.eps) * self.weight.float()).type_as(x),
    )
    return m


@fault("gemma2", f"layers.0.{A}.norm_in", "scale-offset-mismatch", f"decoder.{A}.norm_in.scale_offset", "0-2", value=2)
def offset_twice(source, *, device, dtype):
    """The converter added one, and so does the formula."""
    m = load(source, device, dtype)
    with torch.no_grad():
        for layer in m.model.layers:
            layer.input_layernorm.weight.add_(1.0)
    return m


@fault(
    "gemma2", f"layers.1.{A}.norm_in", "scale-offset-mismatch norm-work-dtype-mismatch",
    f"decoder.{A}.norm_in.scale_offset", "1", dtype="bfloat16",
)  # fmt: skip
def llama_kernel_in_gemma(source, *, device, dtype):
    """Offset lost, and the row cast before it is multiplied."""
    m = load(source, device, dtype)
    normed(m.model.layers[1].input_layernorm, lambda self, x: self.weight * rms(x.float(), self.eps).to(x.dtype))
    return m


@fault(
    "llama", f"layers.1.{A}.norm_in", "norm-work-dtype-mismatch", f"decoder.{A}.norm_in.cast_order", "1",
    value="cast_after_scale", dtype="bfloat16",
)  # fmt: skip
def cast_after_the_weight(source, *, device, dtype):
    m = load(source, device, dtype)
    normed(
        m.model.layers[1].input_layernorm,
        lambda self, x: (self.weight.float() * rms(x.float(), self.variance_epsilon)).to(x.dtype),
    )
    return m


@fault(
    "llama", f"layers.2.{M}.norm_in", "norm-work-dtype-mismatch", f"decoder.{M}.norm_in.work_dtype", "2",
    dtype="bfloat16",
)  # fmt: skip
def moments_in_bf16(source, *, device, dtype):
    m = load(source, device, dtype)
    normed(m.model.layers[2].post_attention_layernorm, lambda self, x: self.weight * rms(x, self.variance_epsilon))
    return m


@fault("llama", f"layers.2.{M}.norm_in", "norm-family-mismatch", f"decoder.{M}.norm_in.family", "2", value="layernorm")
def layernorm_for_rmsnorm(source, *, device, dtype):
    m = load(source, device, dtype)
    normed(
        m.model.layers[2].post_attention_layernorm,
        lambda self, x: self.weight * centred(x.float(), self.variance_epsilon).to(x.dtype),
    )
    return m


@fault("gpt2", f"layers.1.{M}.norm_in", "norm-family-mismatch", f"decoder.{M}.norm_in.family", "1", value="rmsnorm")
def rmsnorm_for_layernorm(source, *, device, dtype):
    """Beta lost, and the mean not removed."""
    m = load(source, device, dtype)
    normed(m.transformer.h[1].ln_2, lambda self, x: self.weight * rms(x.float(), self.eps).to(x.dtype))
    return m


@fault(
    "gpt_neox", f"layers.0.{A}.norm_in", "norm-family-mismatch", f"decoder.{A}.norm_in.family", "0-2", value="rmsnorm"
)
def mean_not_removed(source, *, device, dtype):
    m = load(source, device, dtype)
    for layer in m.gpt_neox.layers:
        normed(layer.input_layernorm, lambda self, x: self.weight * rms(x.float(), self.eps).to(x.dtype) + self.bias)
    return m


@fault(
    "t5", f"encoder.layers.2.{M}.norm_in", "norm-family-mismatch", f"encoder.{M}.norm_in.family", "2", value="layernorm"
)
def layernorm_in_t5(source, *, device, dtype):
    m = load(source, device, dtype)
    norm = m.encoder.block[2].layer[1].layer_norm
    normed(norm, lambda self, x: self.weight * centred(x.float(), self.variance_epsilon).to(x.dtype))
    return m


@fault("gpt_neox", f"layers.1.{A}.norm_in", "norm-bias-missing", f"decoder.{A}.norm_in.bias", "1", value=False)
def beta_lost(source, *, device, dtype):
    m = load(source, device, dtype)
    norm = m.gpt_neox.layers[1].input_layernorm
    normed(norm, lambda self, x: self.weight * centred(x.float(), self.eps).to(x.dtype))
    return m


@fault(
    "llama", f"layers.1.{A}.residual", "residual-source-mismatch", "decoder.residual.shortcut_source", "1",
    value="normalised_state",
)  # fmt: skip
def norm_in_place(source, *, device, dtype):
    """The norm writes into the state that the add reads again."""

    def write(self: Any, x: torch.Tensor) -> torch.Tensor:
        x.mul_(torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))
        return x.mul_(self.weight)

    m = load(source, device, dtype)
    normed(m.model.layers[1].input_layernorm, write)
    return m


@fault("llama", f"layers.1.{A}.residual")
def norm_in_place_before_its_weight(source, *, device, dtype):
    """The same, and the weight is applied to a copy: what is added is no value that the manifest knows."""

    def write(self: Any, x: torch.Tensor) -> torch.Tensor:
        x.mul_(torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))
        return self.weight * x

    m = load(source, device, dtype)
    normed(m.model.layers[1].input_layernorm, write)
    return m


@fault("qwen3", f"layers.1.{A}.branch", "qk-norm-mismatch", f"decoder.{A}.inner.", "1", value=False)
def qk_norm_lost(source, *, device, dtype):
    m = load(source, device, dtype)
    m.model.layers[1].self_attn.q_norm = torch.nn.Identity()
    m.model.layers[1].self_attn.k_norm = torch.nn.Identity()
    return m


@fault("qwen3", f"layers.2.{A}.branch", "", f"decoder.{A}.inner.", "2", value="none", also="norm-axes-mismatch")
def qk_norm_of_ones(source, *, device, dtype):
    """The weights lost in a merge, the division left."""
    m = load(source, device, dtype)
    with torch.no_grad():
        m.model.layers[2].self_attn.q_norm.weight.fill_(1.0)
        m.model.layers[2].self_attn.k_norm.weight.fill_(1.0)
    return m


@fault("olmo2", f"layers.1.{A}.branch", EPSILON, f"decoder.{A}.inner.q.epsilon", "1", value=1e-2)
def eps_of_the_q_norm(source, *, device, dtype):
    m = load(source, device, dtype)
    m.model.layers[1].self_attn.q_norm.variance_epsilon = 1e-2
    return m


@fault("llama", f"layers.1.{A}.norm_in", "norm-shared", f"decoder.{A}.norm_in.module", "1")
def norms_swapped(source, *, device, dtype):
    """Two norms of one layer exchanged."""
    m = load(source, device, dtype)
    layer = m.model.layers[1]
    layer.input_layernorm, layer.post_attention_layernorm = layer.post_attention_layernorm, layer.input_layernorm
    return m


@fault("gpt2", f"layers.2.{M}.norm_in", "norm-shared", f"decoder.{M}.norm_in.module", "2")
def norm_shared(source, *, device, dtype):
    """One instance at both sites."""
    m = load(source, device, dtype)
    m.transformer.h[2].ln_2 = m.transformer.h[2].ln_1
    return m


@fault("llama", f"layers.1.{A}.norm_in", "norm-shared", f"decoder.{A}.norm_in.module", "1")
def norm_of_another_layer(source, *, device, dtype):
    """The values of layer 2's norm under layer 1's name."""
    m = load(source, device, dtype)
    with torch.no_grad():
        m.model.layers[1].input_layernorm.weight.copy_(m.model.layers[2].input_layernorm.weight)
    return m


@fault("gemma2", f"layers.0.{M}.norm_in", "norm-shared", f"decoder.{M}.norm_in.module", "0-2")
def pre_mlp_norm_from_post_attention(source, *, device, dtype):
    """A four-norm block filled by a table for two."""
    m = load(source, device, dtype)
    with torch.no_grad():
        for layer in m.model.layers:
            layer.pre_feedforward_layernorm.weight.copy_(layer.post_attention_layernorm.weight)
    return m


@fault("llama", f"layers.1.{A}.", "norm-missing", f"decoder.{A}.norm_in.present", "1", value=False)
def norm_skipped(source, *, device, dtype):
    m = load(source, device, dtype)
    forward(m.model.layers[1].input_layernorm, lambda self, x: x)
    return m


@fault("llama", f"layers.1.{M}.", "", None, "")
def norm_of_half_the_width(source, *, device, dtype):
    """Statistics over each half of the row: a formula that no manifest of this family has."""

    def halves(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.weight * rms(x.unflatten(-1, (2, -1)).float(), self.variance_epsilon).flatten(-2).to(x.dtype)

    m = load(source, device, dtype)
    normed(m.model.layers[1].post_attention_layernorm, halves)
    return m
