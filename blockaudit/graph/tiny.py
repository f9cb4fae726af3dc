"""A tiny model of any type that transformers lists: config fields filled by what their names say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

LAYERS = 3
BATCH, LENGTH = 2, 7

_TOKENS = ("_token_id", "_token_index", "_index")
LAYER_KEYS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers",
    "num_encoder_layers", "num_blocks", "num_layers_per_stack",
)  # fmt: skip
# What a field of this name is set to, where the config class has it and holds a number there.
SIZES: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_dim", "model_dim"), 32),
    **dict.fromkeys(("word_embed_proj_dim", "attention_hidden_size", "lru_width", "mamba_d_ssm", "kv_channels"), 32),
    **dict.fromkeys(("embedding_size", "input_embedding_size", "entity_emb_size", "pooler_hidden_size"), 32),
    **dict.fromkeys(("pronunciation_embed_dim", "shape_embed_dim", "adapter_rank", "gated_norm_rank"), 16),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_inner"), 64),
    **dict.fromkeys(("n_inner", "hidden_dim", "dim_ff", "dff", "ffn_hidden_size", "dense_intermediate_size"), 64),
    **dict.fromkeys(("feed_forward_size", "intermediate_size_mlp", "shared_intermediate_size"), 48),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "shared_experts_intermediate_size"), 16),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_encoder_attention_heads"), 4),
    **dict.fromkeys(("num_decoder_attention_heads", "linear_num_heads", "swa_num_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads", "num_query_groups"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "d_head", "dim_head", "swa_head_dim", "linear_head_dim"), 8),
    **dict.fromkeys(("global_head_dim", "attention_head_size", "attention_head_dim", "query_pre_attn_scalar"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("linear_num_key_heads",), 2),
    **dict.fromkeys(("linear_num_value_heads",), 4),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "num_expert_group"), 2),
    **dict.fromkeys(("topk_group", "first_k_dense_replace", "n_shared_experts", "num_shared_experts"), 1),
    **dict.fromkeys(("num_nextn_predict_layers", "num_dense_layers"), 1),
    **dict.fromkeys(("moe_num_shared_experts", "moe_layer_start_index"), 1),
    **dict.fromkeys(("kv_lora_rank",), 12),
    **dict.fromkeys(("q_lora_rank", "o_lora_rank", "laurel_rank"), 16),
    **dict.fromkeys(("hc_lowrank", "loop_gate_rank", "embedding_rank"), 16),
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "qk_head_dim": 12, "v_head_dim": 6, "rotary_dim": 4,
    "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4, "index_block_size": 4, "index_topk_blocks": 2,
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), 8),
    **dict.fromkeys(("time_step_rank", "mamba_dt_rank"), 4),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 4),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_headdim"), 16),
    **dict.fromkeys(("mamba_n_groups", "n_groups", "mamba_ngroups"), 1),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size"), 8),
    **dict.fromkeys(("sliding_window", "window_size", "attention_window_size", "sliding_window_size"), 4),
    "local_attention": 4, "attention_chunk_size": 4, "attention_window": 4, "block_size": 4,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "context_length"), 64),
    **dict.fromkeys(("max_target_positions", "max_source_positions", "max_2d_position_embeddings"), 64),
    **dict.fromkeys(("max_encoder_position_embeddings", "max_decoder_position_embeddings", "rel_extent"), 64),
    **dict.fromkeys(("vocab_size", "unpadded_vocab_size"), 96),
    **dict.fromkeys(("src_vocab_size", "tgt_vocab_size", "decoder_vocab_size"), 96),
    **dict.fromkeys(("vocab_size_per_layer_input", "entity_vocab_size", "pronunciation_vocab_size"), 96),
    "shape_vocab_size": 96, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0, "prompt_length": 4,
    "encoder_hash_byte_group_vocab": 96, "d_latents": 32, "num_latents": 8, "num_self_attends_per_block": 2,
    "true_hidden_size": 16, "intra_bottleneck_size": 16, "num_codebooks": 2, "moe_layer_end_index": 2,
    "ngram_vocab_size_base": 96, "split_ngram_parts": 2, "ple_embed_dim": 32, "speech_encoder_layers": 1,
    "vision_config": 0, "t2u_encoder_layers": 1, "t2u_decoder_layers": 1, "router_hidden_size": 16,
    "relative_attention_num_buckets": 8, "num_landmarks": 4, "segment_means_seq_len": 16, "num_hash": 4,
    "output_embedding_size": 32, "prediction_head_size": 32, "backbone_hidden_size": 32, "num_centroids": 8,
    "centroid_intermediate_top_k": 2, "n_layers_per_attn_res_block": 2, "num_mem_blocks": 1, "max_length": 20,
    "hidden_size_global": 32, "kv_n_heads": 2, "moe_top_k": 1, "audio_hidden_size": 32,
    **dict.fromkeys(("adapter_in_dim", "adapter_out_dim", "adapter_input_size"), 32),
}  # fmt: skip
# Types, and parts of types, whose sizes are bound to each other by more than the names say.
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SPECIAL: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": {**_ROPE, "mrope_section": [2, 1, 1]}}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}},
    "esm": {"vocab_size": 96, "pad_token_id": 1, "mask_token_id": 2},
    "falcon_h1": {"mamba_d_ssm": 64},
    "funnel": {"block_sizes": (2, 1), "block_repeats": None},
    "gemma4_assistant": {
        "text_config": {
            "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "num_kv_shared_layers": 3,
            "num_hidden_layers": 3,
        }
    },
    "gpt_neo": {
        "num_layers": 4, "attention_types": [[["global", "local"], 2]],
        "attention_layers": ["global", "local", "global", "local"],
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "longcat_flash": {"head_dim": 4},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "mobilebert": {"intra_bottleneck_size": 16, "true_hidden_size": 16, "embedding_size": 32},
    "mpnet": {"relative_attention_num_buckets": 32},
    "neomme": {"head_dim": 16},
    "nystromformer": {"num_landmarks": 1, "segment_means_seq_len": LENGTH},
    "reformer": {
        "axial_pos_shape": (8, 8), "axial_pos_embds_dim": (16, 16), "attn_layers": ["local", "local", "local"],
        "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "is_decoder": True,
    },
    "squeezebert": {"embedding_size": 32},
    "vibevoice_acoustic_tokenizer_encoder": {"num_filters": 2},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 6, "attention_hidden_size": 64, "attention_head_dim": 16,
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid"] * 2,
    },
    "zamba2": {
        "num_hidden_layers": 6, "attention_hidden_size": 64, "attention_head_dim": 16, "mamba_headdim": 16,
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid"] * 2,
    },
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
# What is tried in turn; `fill` gives fields that hold nothing a size as well.
RETRIES: tuple[dict[str, Any], ...] = (
    {}, {"fill": True}, {"num_key_value_heads": 4}, {"num_hidden_layers": 4}, {"head_dim": None},
    {"num_hidden_layers": 6}, {"num_hidden_layers": 2}, {"pad_token_id": 1}, {"is_decoder": False},
)  # fmt: skip


# What a type needs beside tokens, by the shape that it has.
BESIDE: dict[str, dict[str, tuple[int, ...]]] = {
    "voxtral_realtime": {"encoder_inputs_embeds": (BATCH, 4 * LENGTH, 32)},
}


class NotBuilt(Exception):
    """No tiny model of a type could be built; the message says why."""


def shrunk(config: Any, *, fill: bool = False) -> dict[str, Any]:
    """Keyword arguments that make a config of the same class small."""
    given: dict[str, Any] = {}
    fields = _fields(config)
    special = SPECIAL.get(getattr(config, "model_type", ""), {})
    latent = "qk_rope_head_dim" in fields  # MLA: no key heads of their own
    length = next((v for k in LAYER_KEYS if isinstance(v := getattr(config, k, None), int)), 0)
    for key, value in fields.items():
        if key.startswith("_") or (latent and key == "head_dim"):
            continue
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            given[key] = type(value)(**{**shrunk(value, fill=fill), **special.get(key, {})})
        elif isinstance(value, list | tuple):
            entries: list[Any] = list(cast("list[Any]", value))
            if length and len(entries) == length and isinstance(entries[0], str):
                given[key] = kinds(entries)
        elif isinstance(value, bool) or not (isinstance(value, int) or (fill and value is None)):
            continue
        elif key in LAYER_KEYS:
            given[key] = LAYERS
        elif value is not None and key.endswith(_TOKENS) and value >= 90 - len(given) % 40:
            given[key] = 50 + len(given) % 40
        elif key in SIZES:
            given[key] = 4 if latent and key == "num_key_value_heads" else SIZES[key]
    return given | {k: v for k, v in special.items() if not (k in given and isinstance(v, dict))}


def _fields(config: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", vars(config))


def kinds(entries: list[Any]) -> list[Any]:
    """The first layers of a pattern, with every kind that it has among them."""
    short = entries[:LAYERS]
    for i, kind in enumerate(dict.fromkeys(entries)):
        if kind not in short:
            short[-1 - i % (LAYERS - 1)] = kind
    return short


def config_class(model_type: str, class_name: str) -> Any:
    """The config class of an entry.

    A text class that is listed for a config of many parts takes the config of its own part, as the auto classes do.
    """
    import transformers

    own = getattr(getattr(transformers, class_name), "config_class", None)
    return own or transformers.CONFIG_MAPPING[model_type]


def default(cls: Any) -> Any:
    """A config with the defaults of its class; some classes refuse their own."""
    try:
        return cls()
    except Exception:  # the checks of a config raise errors of many kinds
        return cls(**SPECIAL.get(cls.model_type, {}))


def configs(model_type: str, class_name: str, *, moved: bool = False) -> list[Callable[[], Any]]:
    """Ways to make a tiny config for a class, the likeliest first; `moved` gives every epsilon a value of its own."""
    cls = config_class(model_type, class_name)

    def make(extra: Mapping[str, Any], lists: bool) -> Any:
        given = shrunk(default(cls), fill=bool(extra.get("fill")))
        if not lists:
            given = {k: v for k, v in given.items() if not isinstance(v, list)}
        config = cls(**{**given, **{k: v for k, v in extra.items() if k != "fill"}})
        for key, value in (elsewhere(config) if moved else {}).items():
            _assign(config, key, value)
        for part in (config, *(v for v in _fields(config).values() if hasattr(v, "model_type"))):
            part._attn_implementation = "eager"
            part._experts_implementation = "batched_mm"
        return config

    return [lambda e=extra, q=lists: make(e, q) for extra in RETRIES for lists in (True, False)]


def _assign(config: Any, key: str, value: Any) -> None:
    """Set a field; a dotted key is a field of a part."""
    *path, last = key.split(".")
    for part in path:
        config = getattr(config, part)
    setattr(config, last, value)


def epsilons(config: Any, prefix: str = "") -> dict[str, float]:
    """Every config key that names an epsilon, with its value."""
    found: dict[str, float] = {}
    fields = _fields(config)
    for key, value in fields.items():
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            found |= epsilons(value, f"{prefix}{key}.")
        elif "eps" in key and isinstance(value, float):
            found[f"{prefix}{key}"] = value
    return found


def elsewhere(config: Any) -> dict[str, float]:
    """For every epsilon key a value that no code has for a default and no other key has."""
    return {key: round(3.137e-3 + 4.71e-4 * i, 7) for i, key in enumerate(epsilons(config))}


def inputs(config: Any, seed: int) -> dict[str, torch.Tensor]:
    """Tokens for one forward pass, all valid, and what the type needs beside them."""
    text = getattr(config, "text_config", None) or config
    size = min(int(getattr(text, "vocab_size", 0) or 96), 48)
    generator = torch.Generator().manual_seed(seed)
    given = {
        "input_ids": torch.randint(4, size, (BATCH, LENGTH), generator=generator),
        "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long),
    }
    if getattr(config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = torch.randint(4, size, (BATCH, LENGTH), generator=generator)
    beside = BESIDE.get(getattr(config, "model_type", ""), {})
    return given | {k: torch.randn(size, generator=generator) for k, size in beside.items()}
