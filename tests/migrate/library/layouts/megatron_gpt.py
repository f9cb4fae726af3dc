"""GPT as Megatron-core stores it: learned positions, LayerNorm, biases, q, k and v head by head.

Names and layouts: megatron-core 0.16.1, models/gpt/gpt_layer_specs.py (the Transformer Engine modules),
transformer/attention.py: SelfAttention.get_query_key_value_tensors (every head is a group of its own),
fusions/fused_bias_gelu.py: bias_gelu (the tanh form, where `bias_activation_fusion`; else the exact one).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.migrate.library.layouts.equations import attended, layer_norm
from tests.migrate.library.layouts.sizes import Drawn, Sizes

Weights = dict[str, torch.Tensor]


def config(sizes: Sizes, *, fused: bool = True) -> dict[str, Any]:
    """Fields of TransformerConfig and arguments of GPTModel."""
    return {
        "num_layers": sizes.n_layers, "hidden_size": sizes.d_model, "ffn_hidden_size": sizes.d_ff,
        "num_attention_heads": sizes.n_heads, "layernorm_epsilon": 1e-5, "normalization": "LayerNorm",
        "add_bias_linear": True, "bias_activation_fusion": fused, "position_embedding_type": "learned_absolute",
        "vocab_size": sizes.vocab, "max_sequence_length": sizes.n_ctx, "share_embeddings_and_output_weights": True,
        "attention_dropout": 0.0, "hidden_dropout": 0.0,
    }  # fmt: skip


def weights(sizes: Sizes, seed: int) -> Weights:
    draw, d = Drawn(seed), sizes.d_model
    found: Weights = {
        "embedding.word_embeddings.weight": draw.matrix(sizes.vocab, d),
        "embedding.position_embeddings.weight": draw.matrix(sizes.n_ctx, d),
    }

    def norm(name: str) -> None:
        found[f"{name}weight"], found[f"{name}bias"] = draw.gain(d), draw.vector(d)

    def linear(name: str, out: int, into: int) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = draw.matrix(out, into), draw.vector(out)

    for n in range(sizes.n_layers):
        at = f"decoder.layers.{n}."
        norm(f"{at}self_attention.linear_qkv.layer_norm_")
        linear(f"{at}self_attention.linear_qkv", 3 * d, d)
        linear(f"{at}self_attention.linear_proj", d, d)
        norm(f"{at}mlp.linear_fc1.layer_norm_")
        linear(f"{at}mlp.linear_fc1", sizes.d_ff, d)
        linear(f"{at}mlp.linear_fc2", d, sizes.d_ff)
    norm("decoder.final_layernorm.")
    return found


def logits(found: Weights, given: dict[str, Any], ids: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, vocab] of ids [batch, tokens]."""
    count = given["num_attention_heads"]
    form = "tanh" if given["bias_activation_fusion"] else "none"

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ found[f"{name}.weight"].T + found[f"{name}.bias"]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return layer_norm(x, found[f"{name}weight"], found[f"{name}bias"], given["layernorm_epsilon"])

    table = found["embedding.word_embeddings.weight"]
    x = table[ids] + found["embedding.position_embeddings.weight"][: ids.shape[1]]
    for n in range(given["num_layers"]):
        at = f"decoder.layers.{n}."
        h = norm(x, f"{at}self_attention.linear_qkv.layer_norm_")
        q, k, v = linear(h, f"{at}self_attention.linear_qkv").unflatten(-1, (count, 3, -1)).unbind(3)
        x = x + linear(attended(q, k, v), f"{at}self_attention.linear_proj")
        h = linear(norm(x, f"{at}mlp.linear_fc1.layer_norm_"), f"{at}mlp.linear_fc1")
        x = x + linear(F.gelu(h, approximate=form), f"{at}mlp.linear_fc2")
    return norm(x, "decoder.final_layernorm.") @ table.T
