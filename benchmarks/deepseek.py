"""A checkpoint of the shape of DeepSeek-V3 in FP8: 61 layers and one MTP layer, 91,991 tensors, 164 shards, 689 GB."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.sparse import Layout, Tensor, split

LAYERS, FIRST_DENSE, EXPERTS = 61, 3, 256
D_MODEL, D_FF, D_MOE, VOCAB = 7168, 18432, 2048, 129280
HEADS, Q_RANK, KV_RANK, D_NOPE, D_ROPE, D_V = 128, 1536, 512, 128, 64, 128
BLOCK = 128
SHARDS = 164
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "first_k_dense_replace": FIRST_DENSE,
    "hidden_act": "silu",
    "hidden_size": D_MODEL,
    "initializer_range": 0.02,
    "intermediate_size": D_FF,
    "kv_lora_rank": KV_RANK,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": D_MOE,
    "n_group": 8,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": HEADS,
    "num_experts_per_tok": 8,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": HEADS,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": Q_RANK,
    "qk_nope_head_dim": D_NOPE,
    "qk_rope_head_dim": D_ROPE,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [BLOCK, BLOCK],
    },
    "rms_norm_eps": 1e-06,
    "routed_scaling_factor": 2.5,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": D_V,
    "vocab_size": VOCAB,
}


def layout() -> Layout:
    """The whole checkpoint."""
    return split(list(_tensors()), SHARDS, CONFIG)


def _tensors() -> Iterator[Tensor]:
    yield _plain("model.embed_tokens", VOCAB, D_MODEL)
    for layer in range(LAYERS + 1):
        at = f"model.layers.{layer}"
        if layer == LAYERS:
            yield _plain(f"{at}.embed_tokens", VOCAB, D_MODEL)
            yield _gain(f"{at}.enorm", D_MODEL)
            yield _gain(f"{at}.hnorm", D_MODEL)
            yield _plain(f"{at}.eh_proj", D_MODEL, 2 * D_MODEL)
        yield from _attention(f"{at}.self_attn")
        yield from _dense(f"{at}.mlp", D_FF) if layer < FIRST_DENSE else _moe(f"{at}.mlp")
        yield _gain(f"{at}.input_layernorm", D_MODEL)
        yield _gain(f"{at}.post_attention_layernorm", D_MODEL)
        if layer == LAYERS:
            yield _gain(f"{at}.shared_head.norm", D_MODEL)
            yield _plain(f"{at}.shared_head.head", VOCAB, D_MODEL)
    yield _gain("model.norm", D_MODEL)
    yield _plain("lm_head", VOCAB, D_MODEL)


def _attention(at: str) -> Iterator[Tensor]:
    yield from _fp8(f"{at}.q_a_proj", Q_RANK, D_MODEL)
    yield _gain(f"{at}.q_a_layernorm", Q_RANK)
    yield from _fp8(f"{at}.q_b_proj", HEADS * (D_NOPE + D_ROPE), Q_RANK)
    yield from _fp8(f"{at}.kv_a_proj_with_mqa", KV_RANK + D_ROPE, D_MODEL)
    yield _gain(f"{at}.kv_a_layernorm", KV_RANK)
    yield from _fp8(f"{at}.kv_b_proj", HEADS * (D_NOPE + D_V), KV_RANK)
    yield from _fp8(f"{at}.o_proj", D_MODEL, HEADS * D_V)


def _moe(at: str) -> Iterator[Tensor]:
    yield _plain(f"{at}.gate", EXPERTS, D_MODEL)
    yield Tensor(f"{at}.gate.e_score_correction_bias", "F32", (EXPERTS,))
    yield from _dense(f"{at}.shared_experts", D_MOE)
    for expert in range(EXPERTS):
        yield from _dense(f"{at}.experts.{expert}", D_MOE)


def _dense(at: str, width: int) -> Iterator[Tensor]:
    yield from _fp8(f"{at}.gate_proj", width, D_MODEL)
    yield from _fp8(f"{at}.up_proj", width, D_MODEL)
    yield from _fp8(f"{at}.down_proj", D_MODEL, width)


def _fp8(module: str, rows: int, columns: int) -> Iterator[Tensor]:
    yield Tensor(f"{module}.weight", "F8_E4M3", (rows, columns))
    yield Tensor(f"{module}.weight_scale_inv", "F32", (-(-rows // BLOCK), -(-columns // BLOCK)))


def _plain(module: str, rows: int, columns: int) -> Tensor:
    return Tensor(f"{module}.weight", "BF16", (rows, columns))


def _gain(module: str, size: int) -> Tensor:
    return Tensor(f"{module}.weight", "BF16", (size,), gain=True)
