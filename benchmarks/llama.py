"""A checkpoint of the shape of LLaMA-3-70B: 80 layers, 723 tensors, 30 shards, 141 GB apparent."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.sparse import Layout, Tensor, split

LAYERS, D_MODEL, HEADS, KV_HEADS, D_FF, VOCAB = 80, 8192, 64, 8, 28672, 128256
SHARDS = 30
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": D_MODEL,
    "initializer_range": 0.02,
    "intermediate_size": D_FF,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.0.dev0",
    "use_cache": True,
    "vocab_size": VOCAB,
}


def layout() -> Layout:
    """The whole checkpoint."""
    return split(list(_tensors()), SHARDS, CONFIG)


def _tensors() -> Iterator[Tensor]:
    yield _weight("model.embed_tokens", VOCAB, D_MODEL)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        yield _gain(f"{at}.input_layernorm")
        yield _weight(f"{at}.mlp.down_proj", D_MODEL, D_FF)
        yield _weight(f"{at}.mlp.gate_proj", D_FF, D_MODEL)
        yield _weight(f"{at}.mlp.up_proj", D_FF, D_MODEL)
        yield _gain(f"{at}.post_attention_layernorm")
        for name, heads in (("k", KV_HEADS), ("o", HEADS), ("q", HEADS), ("v", KV_HEADS)):
            yield _weight(f"{at}.self_attn.{name}_proj", heads * D_MODEL // HEADS, D_MODEL)
    yield _gain("model.norm")
    yield _weight("lm_head", VOCAB, D_MODEL)


def _weight(module: str, rows: int, columns: int) -> Tensor:
    return Tensor(f"{module}.weight", "BF16", (rows, columns))


def _gain(module: str) -> Tensor:
    return Tensor(f"{module}.weight", "BF16", (D_MODEL,), gain=True)
