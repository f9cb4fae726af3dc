"""BERT with the names of its first PyTorch ports: a LayerNorm's tensors are `gamma` and `beta`, all else is as today.

Post-LN encoder (Vaswani et al. 2017, section 3.1) with a masked-language-model head (Devlin et al. 2019).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.migrate.library.layouts.equations import attended, heads, layer_norm
from tests.migrate.library.layouts.sizes import Drawn, Sizes

Weights = dict[str, torch.Tensor]


def config(sizes: Sizes) -> dict[str, Any]:
    return {
        "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": sizes.d_model,
        "num_hidden_layers": sizes.n_layers, "num_attention_heads": sizes.n_heads, "intermediate_size": sizes.d_ff,
        "vocab_size": sizes.vocab, "max_position_embeddings": sizes.n_ctx, "type_vocab_size": 2, "hidden_act": "gelu",
        "layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip


def weights(sizes: Sizes, seed: int) -> Weights:
    draw, d = Drawn(seed), sizes.d_model
    found: Weights = {}

    def linear(name: str, out: int, into: int) -> None:
        found[f"{name}.weight"], found[f"{name}.bias"] = draw.matrix(out, into), draw.vector(out)

    def norm(name: str) -> None:
        found[f"{name}.gamma"], found[f"{name}.beta"] = draw.gain(d), draw.vector(d)

    for name, rows in {"word": sizes.vocab, "position": sizes.n_ctx, "token_type": 2}.items():
        found[f"bert.embeddings.{name}_embeddings.weight"] = draw.matrix(rows, d)
    norm("bert.embeddings.LayerNorm")
    for n in range(sizes.n_layers):
        at = f"bert.encoder.layer.{n}."
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            linear(f"{at}attention.{name}", d, d)
        norm(f"{at}attention.output.LayerNorm")
        linear(f"{at}intermediate.dense", sizes.d_ff, d)
        linear(f"{at}output.dense", d, sizes.d_ff)
        norm(f"{at}output.LayerNorm")
    linear("cls.predictions.transform.dense", d, d)
    norm("cls.predictions.transform.LayerNorm")
    found["cls.predictions.bias"] = draw.vector(sizes.vocab)
    # Those ports stored the tied matrix as well.
    found["cls.predictions.decoder.weight"] = found["bert.embeddings.word_embeddings.weight"].clone()
    return found


def logits(found: Weights, given: dict[str, Any], ids: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, vocab] of ids [batch, tokens], all of the first type."""

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ found[f"{name}.weight"].T + found[f"{name}.bias"]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return layer_norm(x, found[f"{name}.gamma"], found[f"{name}.beta"], given["layer_norm_eps"])

    words, places, types = (
        found[f"bert.embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")
    )
    x = norm(words[ids] + places[: ids.shape[1]] + types[0], "bert.embeddings.LayerNorm")
    for n in range(given["num_hidden_layers"]):
        at = f"bert.encoder.layer.{n}."
        q, k, v = (
            heads(linear(x, f"{at}attention.self.{name}"), given["num_attention_heads"])
            for name in ("query", "key", "value")
        )
        update = linear(attended(q, k, v, causal=False), f"{at}attention.output.dense")
        x = norm(x + update, f"{at}attention.output.LayerNorm")
        update = linear(F.gelu(linear(x, f"{at}intermediate.dense")), f"{at}output.dense")
        x = norm(x + update, f"{at}output.LayerNorm")
    x = norm(F.gelu(linear(x, "cls.predictions.transform.dense")), "cls.predictions.transform.LayerNorm")
    return x @ found["cls.predictions.decoder.weight"].T + found["cls.predictions.bias"]
