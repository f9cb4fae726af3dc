"""LLaMA as litgpt 0.5.13 stores it: q, k and v one after the other in one projection, pairs of rotary rows half a head
apart (litgpt/model.py), and every field of its config in model_config.yaml (litgpt/utils.py: save_config)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml

from tests.migrate.library.layouts.equations import attended, heads, rms_norm, turned
from tests.migrate.library.layouts.sizes import Drawn, Sizes

Weights = dict[str, torch.Tensor]
# What save_config writes beside the sizes, for a LLaMA.
_REST: dict[str, Any] = {
    "name": "tiny", "hf_config": {}, "padding_multiple": 64, "norm_class_name": "RMSNorm", "norm_qk": False,
    "norm_qk_type": "default", "post_attention_norm": False, "post_mlp_norm": False, "parallel_residual": False,
    "shared_attention_norm": False, "attn_bias": False, "attention_scores_scalar": None, "sliding_window_size": None,
    "sliding_window_indices": None, "attention_logit_softcapping": None, "rotary_percentage": 1.0,
    "rope_condense_ratio": 1, "rope_adjustments": None, "rope_interleave": False, "moe_intermediate_size": None,
    "bias": False, "mlp_class_name": "LLaMAMLP", "gelu_approximate": "none", "n_expert": 0, "n_shared_expert": None,
    "n_expert_groups": None, "n_topk_groups": None, "n_topk_scores_per_group": None, "n_expert_per_token": 0,
    "first_k_dense_replace": None, "routed_scaling_factor": 1.0, "norm_topk_prob": False, "scale_embeddings": False,
    "lm_head_bias": False, "final_logit_softcapping": None, "norm_1": True, "norm_2": True, "latent_attention": None,
    "rope_local_base_freq": None, "rope_indices": None,
}  # fmt: skip


def config(sizes: Sizes) -> dict[str, Any]:
    """model_config.yaml. The vocabulary is padded: 90 tokens, and rows for `padded_vocab_size`."""
    return {
        **_REST, "block_size": sizes.n_ctx, "n_layer": sizes.n_layers, "n_embd": sizes.d_model,
        "n_head": sizes.n_heads, "n_query_groups": sizes.n_kv, "head_size": sizes.d_head, "vocab_size": 90,
        "padded_vocab_size": sizes.vocab, "norm_eps": 1e-5, "rope_base": 5000, "intermediate_size": sizes.d_ff,
    }  # fmt: skip


def weights(sizes: Sizes, seed: int) -> Weights:
    draw, d = Drawn(seed), sizes.d_model
    found: Weights = {
        "lm_head.weight": draw.matrix(sizes.vocab, d),
        "transformer.wte.weight": draw.matrix(sizes.vocab, d),
    }
    for n in range(sizes.n_layers):
        at = f"transformer.h.{n}."
        found[f"{at}norm_1.weight"] = draw.gain(d)
        found[f"{at}attn.qkv.weight"] = draw.matrix((sizes.n_heads + 2 * sizes.n_kv) * sizes.d_head, d)
        found[f"{at}attn.proj.weight"] = draw.matrix(d, d)
        found[f"{at}norm_2.weight"] = draw.gain(d)
        for name, shape in {"fc_1": (sizes.d_ff, d), "fc_2": (sizes.d_ff, d), "proj": (d, sizes.d_ff)}.items():
            found[f"{at}mlp.{name}.weight"] = draw.matrix(*shape)
    found["transformer.ln_f.weight"] = draw.gain(d)
    return found


def logits(found: Weights, given: dict[str, Any], ids: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, padded vocab] of ids [batch, tokens]."""
    epsilon, h, g = given["norm_eps"], given["n_head"], given["n_query_groups"]
    x = found["transformer.wte.weight"][ids]
    for n in range(given["n_layer"]):
        at = f"transformer.h.{n}."
        fused = rms_norm(x, found[f"{at}norm_1.weight"], epsilon) @ found[f"{at}attn.qkv.weight"].T
        q, k, v = heads(fused, h + 2 * g).split([h, g, g], 2)
        q, k = (turned(t, float(given["rope_base"]), pairs="half") for t in (q, k))
        x = x + attended(q, k, v) @ found[f"{at}attn.proj.weight"].T
        y = rms_norm(x, found[f"{at}norm_2.weight"], epsilon)
        gate, up, down = (found[f"{at}mlp.{name}.weight"] for name in ("fc_1", "fc_2", "proj"))
        x = x + (F.silu(y @ gate.T) * (y @ up.T)) @ down.T
    return rms_norm(x, found["transformer.ln_f.weight"], epsilon) @ found["lm_head.weight"].T


def save(found: Weights, given: dict[str, Any], folder: Path) -> None:
    """Write lit_model.pth and model_config.yaml."""
    folder.mkdir(parents=True)
    torch.save(found, folder / "lit_model.pth")
    (folder / "model_config.yaml").write_text(yaml.dump(given))
