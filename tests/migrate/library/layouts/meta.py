"""LLaMA as Meta stores it: `consolidated.{r}.pth` and `params.json`, pairs of rotary rows interleaved.

Names, sizes and the axis along which each tensor is cut: llama-models 0.3.0, llama_models/llama3/model.py; the
embedding of LLaMA 1 and 2 is cut along d_model (facebookresearch/llama, llama/model.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from tests.migrate.library.layouts.equations import attended, heads, rms_norm, turned
from tests.migrate.library.layouts.sizes import Drawn, Sizes

Weights = dict[str, torch.Tensor]
# apply_scaling in the same file: factor, low and high turns, length.
_STRETCH = (8.0, 1.0, 4.0, 8192.0)
# Cut over ranks along this axis; what is not named is on every rank.
CUT = {"wq": 0, "wk": 0, "wv": 0, "wo": 1, "w1": 0, "w3": 0, "w2": 1, "output": 0, "tok_embeddings": 0}


def config(sizes: Sizes) -> dict[str, Any]:
    """params.json. The width of the feed-forward is int(m * int(8 d / 3)), rounded up to `multiple_of`."""
    multiplier = {48: 0.5, 32: 0.375}[sizes.d_ff]
    return {
        "dim": sizes.d_model, "n_layers": sizes.n_layers, "n_heads": sizes.n_heads, "n_kv_heads": sizes.n_kv,
        "vocab_size": sizes.vocab, "multiple_of": 8, "ffn_dim_multiplier": multiplier, "norm_eps": 1e-5,
        "rope_theta": 5000.0,
    }  # fmt: skip


def weights(sizes: Sizes, seed: int, *, attention: str = "attention", head: str = "output") -> Weights:
    """Weights of one rank. `attention`: what stands before `wq`, and `head`: what the output is called."""
    draw, d, kv = Drawn(seed), sizes.d_model, sizes.n_kv * sizes.d_head
    found: Weights = {"tok_embeddings.weight": draw.matrix(sizes.vocab, d)}
    for n in range(sizes.n_layers):
        at = f"layers.{n}."
        for name, shape in {"wq": (d, d), "wk": (kv, d), "wv": (kv, d)}.items():
            found[f"{at}{attention}.{name}.weight"] = draw.matrix(*shape)
        found[f"{at}attention.wo.weight"] = draw.matrix(d, d)
        for name, shape in {"w1": (sizes.d_ff, d), "w2": (d, sizes.d_ff), "w3": (sizes.d_ff, d)}.items():
            found[f"{at}feed_forward.{name}.weight"] = draw.matrix(*shape)
        found[f"{at}attention_norm.weight"] = draw.gain(d)
        found[f"{at}ffn_norm.weight"] = draw.gain(d)
    found["norm.weight"] = draw.gain(d)
    found[f"{head}.weight"] = draw.matrix(sizes.vocab, d)
    return found


def logits(found: Weights, params: dict[str, Any], ids: torch.Tensor, *, attention: str = "attention",
           head: str = "output") -> torch.Tensor:  # fmt: skip
    """[batch, tokens, vocab] of ids [batch, tokens]."""
    epsilon, theta = params["norm_eps"], params.get("rope_theta", 10000.0)
    stretch = _STRETCH if params.get("use_scaled_rope") else None
    x = found["tok_embeddings.weight"][ids]
    for n in range(params["n_layers"]):
        at = f"layers.{n}."
        w = {name: found[f"{at}{attention}.{name}.weight"] for name in ("wq", "wk", "wv")}
        h = rms_norm(x, found[f"{at}attention_norm.weight"], epsilon)
        q, k = heads(h @ w["wq"].T, params["n_heads"]), heads(h @ w["wk"].T, params["n_kv_heads"])
        v = heads(h @ w["wv"].T, params["n_kv_heads"])
        q, k = (turned(t, theta, pairs="interleaved", stretch=stretch) for t in (q, k))
        x = x + attended(q, k, v) @ found[f"{at}attention.wo.weight"].T
        h = rms_norm(x, found[f"{at}ffn_norm.weight"], epsilon)
        gate, up, down = (found[f"{at}feed_forward.{name}.weight"] for name in ("w1", "w3", "w2"))
        x = x + (F.silu(h @ gate.T) * (h @ up.T)) @ down.T
    return rms_norm(x, found["norm.weight"], epsilon) @ found[f"{head}.weight"].T


def sharded(found: Weights, ranks: int, *, embedding: int = 0) -> list[Weights]:
    """The weights of each rank; `embedding` is the axis along which the token embedding is cut."""
    cut = {**CUT, "tok_embeddings": embedding}
    shards: list[Weights] = [{} for _ in range(ranks)]
    for key, tensor in found.items():
        axis = cut.get(key.split(".")[-2])
        parts = [tensor] * ranks if axis is None else tensor.chunk(ranks, axis)
        for shard, part in zip(shards, parts, strict=True):
            shard[key] = part.clone()
    return shards


def save(shards: list[Weights], params: dict[str, Any], folder: Path) -> None:
    """Write consolidated.00.pth, ... and params.json."""
    folder.mkdir(parents=True)
    for rank, shard in enumerate(shards):
        torch.save(shard, folder / f"consolidated.{rank:02d}.pth")
    (folder / "params.json").write_text(json.dumps(params))
