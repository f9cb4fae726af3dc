"""GPT-NeoX as its own library stores it: the numbers of one nn.Sequential, the layers from 2 on.

Names and numbers: EleutherAI/gpt-neox @ 01ec4bc, megatron/model/gpt2_model.py: GPT2ModelPipe.init_specs, to_sequential.
q, k and v head by head, rotary on the first rows of a head in pairs i and i + r / 2; both branches read the state, each
through a norm of its own (Black et al. 2022, GPT-NeoX-20B, section 2).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.migrate.library.layouts.equations import attended, layer_norm, turned
from tests.migrate.library.layouts.sizes import Drawn, Sizes

Weights = dict[str, torch.Tensor]


def config(sizes: Sizes, *, parallel: bool = True, tied: bool = False, fused: bool = False) -> dict[str, Any]:
    """NeoXArgs. `fused`: the activation is gelu's tanh form (megatron/model/activations.py: bias_gelu)."""
    return {
        "num_layers": sizes.n_layers, "hidden_size": sizes.d_model, "intermediate_size": sizes.d_ff,
        "num_attention_heads": sizes.n_heads, "padded_vocab_size": sizes.vocab, "layernorm_epsilon": 1e-5,
        "max_position_embeddings": sizes.n_ctx, "rotary_pct": 0.5, "rotary_emb_base": 5000,
        "gpt_j_residual": parallel, "gpt_j_tied": False, "no_weight_tying": not tied, "activation": "gelu",
        "bias_gelu_fusion": fused, "norm": "layernorm", "pos_emb": "rotary", "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
    }  # fmt: skip


def weights(sizes: Sizes, seed: int, *, tied: bool = False) -> Weights:
    draw, d = Drawn(seed), sizes.d_model
    found: Weights = {"sequential.0.word_embeddings.weight": draw.matrix(sizes.vocab, d)}

    def norm(name: str) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = draw.gain(d), draw.vector(d)

    def linear(name: str, out: int, into: int) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = draw.matrix(out, into), draw.vector(out)

    for n in range(2, sizes.n_layers + 2):
        at = f"sequential.{n}."
        norm(f"{at}input_layernorm")
        linear(f"{at}attention.query_key_value", 3 * d, d)
        found[f"{at}attention.rotary_emb.inv_freq"] = 5000.0 ** (-torch.arange(0, 4, 2, dtype=torch.float32) / 4)
        linear(f"{at}attention.dense", d, d)
        norm(f"{at}post_attention_layernorm")
        linear(f"{at}mlp.dense_h_to_4h", sizes.d_ff, d)
        linear(f"{at}mlp.dense_4h_to_h", d, sizes.d_ff)
    norm(f"sequential.{sizes.n_layers + 3}.norm")
    if not tied:
        found[f"sequential.{sizes.n_layers + 4}.final_linear.weight"] = draw.matrix(sizes.vocab, d)
    return found


def _rotated(x: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    """Heads [batch, tokens, heads, rows], of which the first `rotary_pct` turn."""
    rows = int(x.shape[-1] * given["rotary_pct"])
    return torch.cat([turned(x[..., :rows], given["rotary_emb_base"], pairs="half"), x[..., rows:]], -1)


def logits(found: Weights, given: dict[str, Any], ids: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, vocab] of ids [batch, tokens]."""
    count, layers = given["num_attention_heads"], given["num_layers"]
    form = "tanh" if given["bias_gelu_fusion"] else "none"

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ found[f"{name}.weight"].T + found[f"{name}.bias"]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return layer_norm(x, found[f"{name}.weight"], found[f"{name}.bias"], given["layernorm_epsilon"])

    x = found["sequential.0.word_embeddings.weight"][ids]
    for n in range(2, layers + 2):
        at = f"sequential.{n}."
        mixed = linear(norm(x, f"{at}input_layernorm"), f"{at}attention.query_key_value")
        q, k, v = mixed.unflatten(-1, (count, 3, -1)).unbind(3)
        q, k = _rotated(q, given), _rotated(k, given)
        update = linear(attended(q, k, v), f"{at}attention.dense")
        middle = x if given["gpt_j_residual"] else x + update
        h = linear(norm(middle, f"{at}post_attention_layernorm"), f"{at}mlp.dense_h_to_4h")
        x = x + update + linear(F.gelu(h, approximate=form), f"{at}mlp.dense_4h_to_h")
    head = "0.word_embeddings" if not given["no_weight_tying"] else f"{layers + 4}.final_linear"
    return norm(x, f"sequential.{layers + 3}.norm") @ found[f"sequential.{head}.weight"].T
