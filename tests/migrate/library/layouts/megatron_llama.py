"""LLaMA as Megatron-core stores it: a norm inside the linear that reads it, q, k and v by group, gate above up.

Names and layouts: megatron-core 0.16.1, models/gpt/gpt_layer_specs.py (the Transformer Engine modules),
transformer/attention.py: SelfAttention.get_query_key_value_tensors, transformer/mlp.py: glu.
Axis along which a tensor is cut: tensor_parallel/layers.py. Each rank holds its rows of gate, then its rows of up.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.migrate.library.layouts.equations import attended, rms_norm, turned
from tests.migrate.library.layouts.sizes import Drawn, Sizes

Weights = dict[str, torch.Tensor]


def config(sizes: Sizes, *, padded: int | None = None, tied: bool = False) -> dict[str, Any]:
    """Fields of TransformerConfig and arguments of GPTModel. `padded`: rows of the table, where some have no token."""
    said = {
        "num_layers": sizes.n_layers, "hidden_size": sizes.d_model, "ffn_hidden_size": sizes.d_ff,
        "num_attention_heads": sizes.n_heads, "num_query_groups": sizes.n_kv, "kv_channels": sizes.d_head,
        "layernorm_epsilon": 1e-5, "normalization": "RMSNorm", "gated_linear_unit": True, "add_bias_linear": False,
        "position_embedding_type": "rope", "rotary_base": 5000, "rotary_percent": 1.0, "vocab_size": sizes.vocab,
        "max_sequence_length": sizes.n_ctx, "share_embeddings_and_output_weights": tied, "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
    }  # fmt: skip
    return said if padded is None else {**said, "padded_vocab_size": padded}


def weights(sizes: Sizes, seed: int, *, padded: int | None = None, tied: bool = False) -> Weights:
    draw, d, rows = Drawn(seed), sizes.d_model, padded or sizes.vocab
    found: Weights = {"embedding.word_embeddings.weight": draw.matrix(rows, d)}
    for n in range(sizes.n_layers):
        at = f"decoder.layers.{n}."
        found[f"{at}self_attention.linear_qkv.layer_norm_weight"] = draw.gain(d)
        found[f"{at}self_attention.linear_qkv.weight"] = draw.matrix((sizes.n_heads + 2 * sizes.n_kv) * sizes.d_head, d)
        found[f"{at}self_attention.linear_proj.weight"] = draw.matrix(d, sizes.n_heads * sizes.d_head)
        found[f"{at}mlp.linear_fc1.layer_norm_weight"] = draw.gain(d)
        found[f"{at}mlp.linear_fc1.weight"] = draw.matrix(2 * sizes.d_ff, d)
        found[f"{at}mlp.linear_fc2.weight"] = draw.matrix(d, sizes.d_ff)
    found["decoder.final_layernorm.weight"] = draw.gain(d)
    if not tied:
        found["output_layer.weight"] = draw.matrix(rows, d)
    return found


def logits(found: Weights, given: dict[str, Any], ids: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, rows of the table] of ids [batch, tokens]."""
    epsilon, groups, rows = given["layernorm_epsilon"], given["num_query_groups"], given["kv_channels"]
    per_group = given["num_attention_heads"] // groups
    x = found["embedding.word_embeddings.weight"][ids]
    for n in range(given["num_layers"]):
        at = f"decoder.layers.{n}."
        h = rms_norm(x, found[f"{at}self_attention.linear_qkv.layer_norm_weight"], epsilon)
        mixed = (h @ found[f"{at}self_attention.linear_qkv.weight"].T).unflatten(-1, (groups, per_group + 2, rows))
        q, k, v = mixed[..., :per_group, :].flatten(2, 3), mixed[..., per_group, :], mixed[..., per_group + 1, :]
        q, k = (turned(t, given["rotary_base"], pairs="half") for t in (q, k))
        x = x + attended(q, k, v) @ found[f"{at}self_attention.linear_proj.weight"].T
        h = rms_norm(x, found[f"{at}mlp.linear_fc1.layer_norm_weight"], epsilon)
        gate, up = (h @ found[f"{at}mlp.linear_fc1.weight"].T).chunk(2, -1)
        x = x + (F.silu(gate) * up) @ found[f"{at}mlp.linear_fc2.weight"].T
    x = rms_norm(x, found["decoder.final_layernorm.weight"], epsilon)
    head = "embedding.word_embeddings.weight" if given["share_embeddings_and_output_weights"] else "output_layer.weight"
    return x @ found[head].T


def sharded(found: Weights, ranks: int) -> list[Weights]:
    """The weights of each rank of tensor parallelism."""
    shards: list[Weights] = [{} for _ in range(ranks)]
    for key, tensor in found.items():
        if key.endswith("linear_fc1.weight"):
            gate, up = (half.chunk(ranks, 0) for half in tensor.chunk(2, 0))
            parts = [torch.cat(pair, 0) for pair in zip(gate, up, strict=True)]
        elif key.endswith(("linear_proj.weight", "linear_fc2.weight")):
            parts = list(tensor.chunk(ranks, 1))
        elif tensor.ndim == 2:
            parts = list(tensor.chunk(ranks, 0))
        else:
            parts = [tensor] * ranks
        for shard, part in zip(shards, parts, strict=True):
            shard[key] = part.clone()
    return shards
