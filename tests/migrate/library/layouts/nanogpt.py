"""GPT-2 as nanoGPT stores it (model.py): every projection [out, in], the head tied, the causal mask among the tensors
where the fused attention is off, and `ckpt.pt` with the state dict under `model` (train.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from tests.migrate.library.layouts.equations import attended, heads, layer_norm
from tests.migrate.library.layouts.sizes import Drawn, Sizes

Weights = dict[str, torch.Tensor]
_EPSILON = 1e-5  # a literal in its LayerNorm


def config(sizes: Sizes) -> dict[str, Any]:
    """`model_args` of ckpt.pt."""
    return {
        "n_layer": sizes.n_layers, "n_head": sizes.n_heads, "n_embd": sizes.d_model, "block_size": sizes.n_ctx,
        "bias": True, "vocab_size": sizes.vocab, "dropout": 0.0,
    }  # fmt: skip


def weights(sizes: Sizes, seed: int, *, masks: bool = False) -> Weights:
    """Weights; with `masks` the buffers too that a model without the fused attention keeps."""
    draw, d = Drawn(seed), sizes.d_model
    found: Weights = {
        "transformer.wte.weight": draw.matrix(sizes.vocab, d),
        "transformer.wpe.weight": draw.matrix(sizes.n_ctx, d),
    }
    linear = {"attn.c_attn": (3 * d, d), "attn.c_proj": (d, d), "mlp.c_fc": (4 * d, d), "mlp.c_proj": (d, 4 * d)}
    for n in range(sizes.n_layers):
        at = f"transformer.h.{n}."
        for name in ("ln_1", "ln_2"):
            found[f"{at}{name}.weight"], found[f"{at}{name}.bias"] = draw.gain(d), draw.vector(d)
        for name, shape in linear.items():
            found[f"{at}{name}.weight"], found[f"{at}{name}.bias"] = draw.matrix(*shape), draw.vector(shape[0])
        if masks:
            found[f"{at}attn.bias"] = torch.ones(sizes.n_ctx, sizes.n_ctx).tril()[None, None]
    found["transformer.ln_f.weight"], found["transformer.ln_f.bias"] = draw.gain(d), draw.vector(d)
    found["lm_head.weight"] = found["transformer.wte.weight"]
    return found


def logits(found: Weights, given: dict[str, Any], ids: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, vocab] of ids [batch, tokens]."""

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ found[f"{name}.weight"].T + found[f"{name}.bias"]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return layer_norm(x, found[f"{name}.weight"], found[f"{name}.bias"], _EPSILON)

    x = found["transformer.wte.weight"][ids] + found["transformer.wpe.weight"][: ids.shape[1]]
    for n in range(given["n_layer"]):
        at = f"transformer.h.{n}."
        q, k, v = (heads(t, given["n_head"]) for t in linear(norm(x, f"{at}ln_1"), f"{at}attn.c_attn").chunk(3, -1))
        x = x + linear(attended(q, k, v), f"{at}attn.c_proj")
        x = x + linear(F.gelu(linear(norm(x, f"{at}ln_2"), f"{at}mlp.c_fc")), f"{at}mlp.c_proj")
    return norm(x, "transformer.ln_f") @ found["lm_head.weight"].T


def save(found: Weights, given: dict[str, Any], folder: Path) -> None:
    """Write ckpt.pt as train.py does, and the config.json that its `model_args` have to be written to."""
    folder.mkdir(parents=True)
    torch.save({"model": found, "model_args": given, "iter_num": 7, "config": {"out_dir": "out"}}, folder / "ckpt.pt")
    (folder / "config.json").write_text(json.dumps(given))
