"""Faults in where things stand: placement, order of branches, residual sums and their factors, whose weights run."""

from __future__ import annotations

import types
from typing import Any

import torch

from tests.trace.faults.patch import forward, llama_layer, load
from tests.trace.faults.table import fault

A, M, X = "self_attention", "mlp", "cross_attention"
PLACED, SCALED = "placement-mismatch", "branch-scale-mismatch"


@fault("llama", f"layers.1.{A}.", PLACED, f"decoder.{A}.norm_in.placement", "1")
def post_ln_one_branch(source, *, device, dtype):
    m = load(source, device, dtype)
    llama_layer(m.model.layers[1], attn_in=lambda s, x, n: x, attn_mix=lambda s, x, n, a: s.input_layernorm(x + a))
    return m


@fault("gpt2", f"layers.0.{A}.", PLACED, f"decoder.{A}.norm_in.placement", "0-2")
def pre_ln_run_as_post_ln(source, *, device, dtype):
    def call(self: Any, hidden_states: torch.Tensor, cache: Any, attention_mask: Any, *args: Any, **kw: Any) -> Any:
        a, _ = self.attn(hidden_states, attention_mask=attention_mask)
        h = self.ln_1(hidden_states + a)
        return self.ln_2(h + self.mlp(h))

    m = load(source, device, dtype)
    for block in m.transformer.h:
        forward(block, call)
    return m


@fault("olmo2", f"layers.0.{A}.", PLACED, f"decoder.{A}.norm_out.placement", "0-2")
def olmo2_run_as_pre_ln(source, *, device, dtype):
    def call(self: Any, hidden_states: torch.Tensor, **kw: Any) -> torch.Tensor:
        a, _ = self.self_attn(hidden_states=self.post_attention_layernorm(hidden_states), **kw)
        h = hidden_states + a
        return h + self.mlp(self.post_feedforward_layernorm(h))

    m = load(source, device, dtype)
    for layer in m.model.layers:
        forward(layer, call)
    return m


@fault("bert", f"layers.1.{A}.", PLACED, f"encoder.{A}.norm_post.placement", "1")
def post_ln_run_as_pre_ln(source, *, device, dtype):
    def call(self: Any, hidden_states: torch.Tensor, attention_mask: Any, *args: Any, **kw: Any) -> torch.Tensor:
        own, out = self.attention.self, self.attention.output
        a, _ = own(out.LayerNorm(hidden_states), attention_mask=attention_mask, **kw)
        h = hidden_states + out.dense(a)
        return h + self.output.dense(self.intermediate(self.output.LayerNorm(h)))

    m = load(source, device, dtype)
    forward(m.bert.encoder.layer[1], call)
    return m


@fault("gpt_neox", f"layers.0.{M}.", "parallel-sequential-mismatch", "decoder.parallel", "0-2", value=False)
def parallel_run_as_sequential(source, *, device, dtype):
    m = load(source, device, dtype)
    for layer in m.gpt_neox.layers:
        layer.use_parallel_residual = False
    return m


@fault("llama", f"layers.1.{M}.", "parallel-sequential-mismatch", "decoder.parallel", "1", value=True)
def sequential_run_as_parallel(source, *, device, dtype):
    m = load(source, device, dtype)
    llama_layer(
        m.model.layers[1],
        attn_mix=lambda s, x, n, a: a,
        mlp_in=lambda s, x, h, n: s.post_attention_layernorm(x),
        mlp_mix=lambda s, h, n, u: s.kept + h + u,
    )
    layer = m.model.layers[1]
    own = layer.forward

    def call(self: Any, hidden_states: torch.Tensor, **kw: Any) -> torch.Tensor:
        self.kept = hidden_states
        return own(hidden_states, **kw)

    layer.forward = types.MethodType(call, layer)
    return m


@fault("llama", f"layers.1.{M}.", "parallel-sequential-mismatch", "decoder.parallel", "1", value=True)
def mlp_norm_reads_the_earlier_state(source, *, device, dtype):
    """The MLP's norm is given the state from before the attention: what a parallel block computes."""
    m = load(source, device, dtype)
    llama_layer(m.model.layers[1], mlp_in=lambda s, x, h, n: s.post_attention_layernorm(x))
    return m


@fault("llama", f"layers.2.{M}.", "norm-missing", f"decoder.{M}.norm_in.present", "2", value=False)
def mlp_reads_the_bare_state(source, *, device, dtype):
    m = load(source, device, dtype)
    llama_layer(m.model.layers[2], mlp_in=lambda s, x, h, n: h)
    return m


@fault("cohere", f"layers.1.{M}.", "branch-input-mismatch", f"decoder.{M}.reads", "1", value="state")
def parallel_mlp_not_normalised(source, *, device, dtype):
    def call(self: Any, hidden_states: torch.Tensor, **kw: Any) -> torch.Tensor:
        a, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kw)
        return hidden_states + a + self.mlp(hidden_states)

    m = load(source, device, dtype)
    forward(m.model.layers[1], call)
    return m


DOUBLED = "residual-scale-mismatch residual-duplicated"


@fault("llama", f"layers.1.{A}.residual", DOUBLED, "decoder.residual.shortcut_scale", "1", value=2)
def shortcut_doubled(source, *, device, dtype):
    """Added in the kernel and in its caller."""
    m = load(source, device, dtype)
    llama_layer(m.model.layers[1], attn_mix=lambda s, x, n, a: (a + x) + x)
    return m


@fault("llama", f"layers.2.{M}.residual", "residual-scale-mismatch", "decoder.residual.shortcut_scale", "2", value=0.5)
def shortcut_halved(source, *, device, dtype):
    m = load(source, device, dtype)
    llama_layer(m.model.layers[2], mlp_mix=lambda s, h, n, u: 0.5 * h + u)
    return m


@fault("gpt2", f"layers.1.{M}.residual", "residual-dropped", "decoder.residual.shortcut_scale", "1", value=0)
def shortcut_dropped(source, *, device, dtype):
    def call(self: Any, hidden_states: torch.Tensor, cache: Any, attention_mask: Any, *args: Any, **kw: Any) -> Any:
        a, _ = self.attn(self.ln_1(hidden_states), attention_mask=attention_mask)
        return self.mlp(self.ln_2(hidden_states + a))

    m = load(source, device, dtype)
    forward(m.transformer.h[1], call)
    return m


@fault("t5", f"decoder.layers.1.{X}.residual", DOUBLED, "decoder.residual.shortcut_scale", "1", value=2)
def shortcut_doubled_in_t5(source, *, device, dtype):
    def call(self: Any, hidden_states: Any, key_value_states: Any, attention_mask: Any = None, **kw: Any) -> Any:
        kw.pop("position_bias", None)
        a, bias, weights = self.EncDecAttention(
            self.layer_norm(hidden_states), mask=attention_mask, key_value_states=key_value_states
        )
        return 2 * hidden_states + a, bias, weights

    m = load(source, device, dtype)
    forward(m.decoder.block[1].layer[1], call)
    return m


@fault("llama", f"layers.1.{A}.residual", "", None, "", also="shortcut-not-identity")
def shortcut_gated(source, *, device, dtype):
    """A gate by channel, which no manifest of this family has."""
    m = load(source, device, dtype)
    gate = torch.linspace(0.5, 1.0, m.config.hidden_size, dtype=dtype, device=device)
    m.model.layers[1].gate = torch.nn.Parameter(gate)
    llama_layer(m.model.layers[1], attn_mix=lambda s, x, n, a: s.gate * x + a)
    return m


@fault(
    "llama", f"layers.1.{A}.residual", "residual-source-mismatch", "decoder.residual.shortcut_source", "1",
    value="normalised_state",
)  # fmt: skip
def shortcut_from_the_normalised_value(source, *, device, dtype):
    m = load(source, device, dtype)
    llama_layer(m.model.layers[1], attn_mix=lambda s, x, n, a: n + a)
    return m


@fault("llama", f"layers.1.{M}.update", SCALED, "decoder.residual.mlp_branch_scale", "1", value=0.5)
def branch_scaled(source, *, device, dtype):
    m = load(source, device, dtype)
    llama_layer(m.model.layers[1], mlp_mix=lambda s, h, n, u: h + 0.5 * u)
    return m


@fault("gemma2", f"layers.0.{A}.update", SCALED, "decoder.residual.attention_branch_scale", "0", value=2)
def branch_added_on_every_rank(source, *, device, dtype):
    def call(self: Any, hidden_states: torch.Tensor, **kw: Any) -> torch.Tensor:
        a, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kw)
        h = hidden_states + 2 * self.post_attention_layernorm(a)
        return h + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(h)))

    m = load(source, device, dtype)
    forward(m.model.layers[0], call)
    return m


@fault("granite", f"layers.0.{A}.update", SCALED, "decoder.residual.attention_branch_scale", "0-2", value=1)
def residual_multiplier_dropped(source, *, device, dtype):
    m = load(source, device, dtype)
    for layer in m.model.layers:
        layer.residual_multiplier = 1.0
    return m


@fault("granite", f"layers.1.{M}.update", SCALED, "decoder.residual.mlp_branch_scale", "1", value=0.0484)
def residual_multiplier_twice(source, *, device, dtype):
    m = load(source, device, dtype)
    llama_layer(m.model.layers[1], scale=0.22, mlp_mix=lambda s, h, n, u: h + (u * 0.22) * 0.22)
    return m


@fault("granite", f"layers.1.{A}.update", SCALED, "decoder.residual.attention_branch_scale", "1")
def residual_multiplier_inverted(source, *, device, dtype):
    m = load(source, device, dtype)
    m.model.layers[1].residual_multiplier = 1 / 0.22
    return m


@fault("llama", "layers.1.", "branch-count-mismatch", "decoder.branch_order", "1", also="site-missing")
def branch_dropped(source, *, device, dtype):
    """One layer runs no attention."""

    def call(self: Any, hidden_states: torch.Tensor, **kw: Any) -> torch.Tensor:
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))

    m = load(source, device, dtype)
    forward(m.model.layers[1], call)
    return m


@fault("llama", f"layers.1.{A}.", "call-order-mismatch", "decoder.branch_order", "1")
def branches_in_the_other_order(source, *, device, dtype):
    def call(self: Any, hidden_states: torch.Tensor, **kw: Any) -> torch.Tensor:
        h = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        return h + self.self_attn(hidden_states=self.input_layernorm(h), **kw)[0]

    m = load(source, device, dtype)
    forward(m.model.layers[1], call)
    return m


@fault("llama", f"layers.1.{A}.norm_in", "call-order-mismatch", "decoder.layers.weights", "1", value="layers.2")
def layers_swapped(source, *, device, dtype):
    m = load(source, device, dtype)
    layers = m.model.layers
    layers[1], layers[2] = layers[2], layers[1]
    return m


@fault("llama", f"layers.1.{M}.branch", "call-order-mismatch", f"decoder.{M}.weights", "1", value="layers.2")
def mlp_of_another_layer(source, *, device, dtype):
    m = load(source, device, dtype)
    with torch.no_grad():
        for own, other in zip(m.model.layers[1].mlp.parameters(), m.model.layers[2].mlp.parameters(), strict=True):
            own.copy_(other)
    return m


@fault("llama", f"layers.1.{M}.", "dropout-active-in-eval", f"decoder.dropout.{M}_output.active", "1", value=True)
def dropout_in_eval(source, *, device, dtype):
    m = load(source, device, dtype)
    drop = torch.nn.functional.dropout
    llama_layer(m.model.layers[1], mlp_mix=lambda s, h, n, u: h + drop(u, 0.1, training=True))
    return m
