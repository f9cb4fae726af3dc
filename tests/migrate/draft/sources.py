"""Sources of every layout that the library has a map from, for a draft to be held to that map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.migrate.library.layouts import (
    bert,
    gemma,
    gguf_llama,
    litgpt,
    megatron_gpt,
    megatron_llama,
    meta,
    nanogpt,
    neox,
    t5x,
    torchtitan,
)
from tests.migrate.library.layouts.sizes import PLAIN, SQUARE, Drawn, Sizes
from tests.migrate.library.proving import saved

LLAMA_2 = {k: v for k, v in meta.config(PLAIN).items() if k != "rope_theta"} | {"vocab_size": -1}
WIDE = Sizes(vocab=32_000)


@dataclass(frozen=True)
class Pair:
    """A source, what it is drafted to, and the map of the library that does the same. `named`: what no key shows."""

    make: Callable[[Path], Path]
    target: str
    map: str
    named: str | None = None


def _saved(weights: dict[str, torch.Tensor], config: dict[str, Any]) -> Callable[[Path], Path]:
    return lambda folder: saved(weights, config, folder)


def _meta(shards: list[dict[str, torch.Tensor]], params: dict[str, Any]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        meta.save(shards, params, folder)
        return folder

    return make


def _litgpt(sizes: Sizes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        litgpt.save(litgpt.weights(sizes, 4), litgpt.config(sizes), folder)
        return folder

    return make


def _nanogpt(folder: Path) -> Path:
    nanogpt.save(nanogpt.weights(PLAIN, 6, masks=True), nanogpt.config(PLAIN), folder)
    return folder


def _t5x(*, gated: bool, tied: bool) -> Callable[[Path], Path]:
    config = t5x.config(PLAIN, gated=gated, tied=tied)
    return _saved(t5x.weights(config, 1), config)


def _llama_2() -> list[dict[str, torch.Tensor]]:
    shards = meta.sharded(meta.weights(WIDE, 3), 2, embedding=1)
    return [{**shard, "rope.freqs": torch.zeros(4)} for shard in shards]


def model(name: str, folder: Path, sizes: Sizes = PLAIN, *, tied: bool = False, **more: Any) -> Path:
    """A model of transformers, drawn and saved; gains far from 1."""
    import transformers

    config = getattr(transformers, f"{name}Config")(
        vocab_size=sizes.vocab, hidden_size=sizes.d_model, intermediate_size=sizes.d_ff,
        num_hidden_layers=sizes.n_layers, num_attention_heads=sizes.n_heads, num_key_value_heads=sizes.n_kv,
        max_position_embeddings=sizes.n_ctx, pad_token_id=0, bos_token_id=1, eos_token_id=2, rope_theta=5000.0,
        tie_word_embeddings=tied, **more,
    )  # fmt: skip
    made = getattr(transformers, f"{name}ForCausalLM")(config)
    draw = Drawn(5)
    with torch.no_grad():
        for key, tensor in made.named_parameters():
            one = draw.gain(len(tensor)) if key.endswith("norm.weight") else None
            one = draw.vector(len(tensor)) if one is None and tensor.ndim == 1 else one
            tensor.copy_(draw.matrix(*tensor.shape) if one is None else one)
    made.save_pretrained(folder)
    return folder


def _hf(name: str, *, tied: bool = False, **more: Any) -> Callable[[Path], Path]:
    return lambda folder: model(name, folder, tied=tied, **more)


PAIRS: dict[str, Pair] = {
    "megatron_llama": Pair(
        _saved(megatron_llama.weights(PLAIN, 1), megatron_llama.config(PLAIN)), "llama", "megatron_llama"
    ),
    "megatron_llama padded, tied, square": Pair(
        _saved(megatron_llama.weights(SQUARE, 1, tied=True, padded=128),
               megatron_llama.config(SQUARE, tied=True, padded=128)), "llama", "megatron_llama"),
    "megatron_gpt": Pair(_saved(megatron_gpt.weights(PLAIN, 3), megatron_gpt.config(PLAIN, fused=False)), "gpt2",
                         "megatron_gpt"),
    "megatron_gpt, gelu by its tanh": Pair(
        _saved(megatron_gpt.weights(PLAIN, 3), megatron_gpt.config(PLAIN, fused=True)), "gpt2", "megatron_gpt"),
    "meta_llama of two ranks": Pair(_meta(meta.sharded(meta.weights(PLAIN, 1), 2), meta.config(PLAIN)), "llama",
                                    "meta_llama", "meta_llama"),
    "meta_llama of two ranks, square": Pair(
        _meta(meta.sharded(meta.weights(SQUARE, 1), 2), meta.config(SQUARE)), "llama", "meta_llama", "meta_llama"),
    "meta_llama of one rank": Pair(_meta([meta.weights(PLAIN, 1)], meta.config(PLAIN)), "llama", "meta_llama",
                                   "meta_llama"),
    "meta_llama, frequencies stretched": Pair(
        _meta(meta.sharded(meta.weights(PLAIN, 2), 2), {**meta.config(PLAIN), "use_scaled_rope": True}), "llama",
        "meta_llama31", "meta_llama"),
    "meta_llama2": Pair(_meta(_llama_2(), LLAMA_2), "llama", "meta_llama2", "meta_llama2"),
    "litgpt": Pair(_litgpt(PLAIN), "llama", "litgpt_llama"),
    "litgpt, square": Pair(_litgpt(SQUARE), "llama", "litgpt_llama"),
    "neox": Pair(_saved(neox.weights(Sizes(n_layers=3), 1), neox.config(Sizes(n_layers=3), parallel=True)), "gpt_neox",
                 "neox_native"),
    "neox, tied": Pair(
        _saved(neox.weights(PLAIN, 1, tied=True), neox.config(PLAIN, parallel=False, tied=True)), "gpt_neox",
        "neox_native"),
    "nanogpt": Pair(_nanogpt, "gpt2", "nanogpt_gpt2"),
    "t5x, gated": Pair(_t5x(gated=True, tied=False), "t5", "t5x"),
    "t5x, plain and tied": Pair(_t5x(gated=False, tied=True), "t5", "t5x"),
    "gamma and beta": Pair(_saved(bert.weights(PLAIN, 7), bert.config(PLAIN)), "bert", "bert_gamma_beta"),
    "gains of BF16": Pair(_saved(gemma.weights(PLAIN, 9, torch.bfloat16), gemma.config(PLAIN)), "gemma", "gemma_gain",
                          "gemma_gain"),
    "gains of F32": Pair(_saved(gemma.weights(PLAIN, 9, torch.float32), gemma.config(PLAIN)), "gemma",
                         "gemma_gain_f32", "gemma_gain"),
    "gguf": Pair(lambda folder: gguf_llama.save(gguf_llama.weights(PLAIN, 1, tied=False), gguf_llama.config(PLAIN),
                                                folder, "F32"), "llama", "gguf_llama"),
    "torchtitan": Pair(_saved(torchtitan.weights(PLAIN, 5), torchtitan.config(PLAIN)), "llama", "torchtitan_llama"),
    "phi3": Pair(_hf("Phi3", tied=True), "llama", "phi3_llama"),
    "experts": Pair(_hf("Mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=None), "mixtral_stacked",
                    "mixtral_stacked"),
}  # fmt: skip
