"""Gemma with its gains as they multiply: where transformers stores w and multiplies by 1 + w, the product is stored."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.migrate.library.layouts.equations import attended, heads, rms_norm, turned
from tests.migrate.library.layouts.sizes import Drawn, Sizes

Weights = dict[str, torch.Tensor]


def config(sizes: Sizes) -> dict[str, Any]:
    return {
        "model_type": "gemma", "architectures": ["GemmaForCausalLM"], "hidden_size": sizes.d_model,
        "num_hidden_layers": sizes.n_layers, "num_attention_heads": sizes.n_heads, "num_key_value_heads": sizes.n_kv,
        "head_dim": sizes.d_head, "intermediate_size": sizes.d_ff, "vocab_size": sizes.vocab, "rms_norm_eps": 1e-6,
        "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": sizes.n_ctx, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    }  # fmt: skip


def weights(sizes: Sizes, seed: int, dtype: torch.dtype = torch.bfloat16) -> Weights:
    draw, d, kv = Drawn(seed), sizes.d_model, sizes.n_kv * sizes.d_head
    found: Weights = {"model.embed_tokens.weight": draw.matrix(sizes.vocab, d)}
    for n in range(sizes.n_layers):
        at = f"model.layers.{n}."
        for name, shape in {"q": (d, d), "k": (kv, d), "v": (kv, d), "o": (d, d)}.items():
            found[f"{at}self_attn.{name}_proj.weight"] = draw.matrix(*shape)
        for name, shape in {"gate": (sizes.d_ff, d), "up": (sizes.d_ff, d), "down": (d, sizes.d_ff)}.items():
            found[f"{at}mlp.{name}_proj.weight"] = draw.matrix(*shape)
        for name in ("input", "post_attention"):
            found[f"{at}{name}_layernorm.weight"] = draw.gain(d)
    found["model.norm.weight"] = draw.gain(d)
    return {key: tensor.to(dtype) for key, tensor in found.items()}


def logits(found: Weights, given: dict[str, Any], ids: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, vocab] of ids [batch, tokens], computed in float32 from the stored numbers."""
    w = {key: tensor.float() for key, tensor in found.items()}
    epsilon, theta = given["rms_norm_eps"], given["rope_parameters"]["rope_theta"]
    x = w["model.embed_tokens.weight"][ids] * given["hidden_size"] ** 0.5
    for n in range(given["num_hidden_layers"]):
        at = f"model.layers.{n}."
        h = rms_norm(x, w[f"{at}input_layernorm.weight"], epsilon)
        q, k, v = (h @ w[f"{at}self_attn.{name}_proj.weight"].T for name in "qkv")
        q, k, v = heads(q, given["num_attention_heads"]), *(heads(t, given["num_key_value_heads"]) for t in (k, v))
        q, k = (turned(t, theta, pairs="half") for t in (q, k))
        x = x + attended(q, k, v) @ w[f"{at}self_attn.o_proj.weight"].T
        h = rms_norm(x, w[f"{at}post_attention_layernorm.weight"], epsilon)
        gate, up, down = (w[f"{at}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        x = x + (F.gelu(h @ gate.T, approximate="tanh") * (h @ up.T)) @ down.T
    return rms_norm(x, w["model.norm.weight"], epsilon) @ w["model.embed_tokens.weight"].T
