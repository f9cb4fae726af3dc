"""Tiny models of every family of the library, from transformers' own config classes (torch is imported on use)."""

from __future__ import annotations

import importlib
from typing import Any

GIVEN = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 96,
    "max_position_embeddings": 64,
}
GQA = {**GIVEN, "num_key_value_heads": 2}
HEAD = {**GQA, "head_dim": 8}
GEMMA = {**HEAD, "query_pre_attn_scalar": 8, "sliding_window": 16}
GPT2 = {"n_embd": 32, "n_inner": 64, "n_layer": 3, "n_head": 4, "vocab_size": 96, "n_positions": 64}
NARROW = {k: v for k, v in GIVEN.items() if k != "intermediate_size"}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

CONFIGS: dict[str, dict[str, Any]] = {
    "albert": {**GIVEN, "embedding_size": 16},
    "bart": {
        "d_model": 32,
        "encoder_layers": 3,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "vocab_size": 96,
        "max_position_embeddings": 64,
    },
    "bert": GIVEN,
    "bloom": {"hidden_size": 32, "n_layer": 3, "n_head": 4, "vocab_size": 96},
    "clip_text_model": {**GIVEN, "projection_dim": 16},
    "cohere": GQA,
    "deepseek_v3": {
        **GIVEN,
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 12,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1,
        "moe_intermediate_size": 16,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
    },
    "falcon": {**{k: v for k, v in NARROW.items() if k != "max_position_embeddings"}, "ffn_hidden_size": 64},
    "gemma": HEAD,
    "gemma2": GEMMA,
    "gemma3_text": GEMMA,
    "glm4": HEAD,
    "gpt2": GPT2,
    "gpt_neox": GIVEN,
    "gptj": {**GPT2, "rotary_dim": 4},
    "granite": {**GQA, "residual_multiplier": 0.22, "embedding_multiplier": 12.0, "logits_scaling": 8.0},
    "llama": HEAD,
    "mistral": HEAD,
    "mixtral": {**HEAD, "num_local_experts": 4, "num_experts_per_tok": 2},
    "nemotron": HEAD,
    "olmo": GQA,
    "olmo2": GQA,
    "opt": {**NARROW, "ffn_dim": 64, "word_embed_proj_dim": 32},
    "phi": GQA,
    "phi3": GQA,
    "qwen2": GQA,
    "qwen3": HEAD,
    "qwen3_moe": {**HEAD, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "roberta": {**GIVEN, "pad_token_id": 1},
    "stablelm": GQA,
    "starcoder2": GQA,
    "t5": {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 3,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "vocab_size": 96,
    },
}

MAIN = {
    "albert": "AlbertForMaskedLM",
    "bart": "BartForConditionalGeneration",
    "bert": "BertForMaskedLM",
    "clip_text_model": "CLIPTextModelWithProjection",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "roberta": "RobertaForMaskedLM",
    "t5": "T5ForConditionalGeneration",
}

# Classes that have, or need, a picture tower beside the text stack.
PICTURES = {
    "Gemma3Model", "Gemma3ForConditionalGeneration", "Gemma3ForSequenceClassification", "CLIPModel", "CLIPVisionModel",
    "CLIPVisionModelWithProjection", "CLIPForImageClassification",
}  # fmt: skip

# Configurations of a family that change which keys there are, or what they mean.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "albert": {"groups": {"num_hidden_groups": 3}, "inner": {"inner_group_num": 2}},
    "bart": {"untied": {"tie_word_embeddings": False}},
    "bert": {"decoder": {"is_decoder": True, "add_cross_attention": True}, "untied": {"tie_word_embeddings": False}},
    "bloom": {"post_ln": {"apply_residual_connection_post_layernorm": True}},
    "cohere": {"qk_norm": {"use_qk_norm": True}},
    "deepseek_v3": {"no_q_lora": {"q_lora_rank": None}, "bias": {"attention_bias": True}},
    "falcon": {
        "new_decoder": {"new_decoder_architecture": True, "num_kv_heads": 2},
        "new_decoder_one_norm": {
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
        },
        "sequential": {"parallel_attn": False},
        "bias": {"bias": True},
        "untied": {"tie_word_embeddings": False},
        "multi_head": {"multi_query": False},
    },
    "gemma": {"untied": {"tie_word_embeddings": False}},
    "gemma2": {"untied": {"tie_word_embeddings": False}, "uncapped": {"final_logit_softcapping": None}},
    "gpt2": {"untied": {"tie_word_embeddings": False}, "cross": {"add_cross_attention": True}},
    "gpt_neox": {
        "sequential": {"use_parallel_residual": False},
        "tied": {"tie_word_embeddings": True},
        "no_bias": {"attention_bias": False},
    },
    "llama": {"tied": {"tie_word_embeddings": True}, "bias": {"attention_bias": True, "mlp_bias": True}},
    "olmo2": {"tied": {"tie_word_embeddings": True}},
    "opt": {
        "post_ln": {"do_layer_norm_before": False},
        "no_final": {"_remove_final_layer_norm": True},
        "projected": {"word_embed_proj_dim": 16},
        "not_affine": {"layer_norm_elementwise_affine": False},
        "no_bias": {"enable_bias": False},
    },
    "phi": {"qk_norm": {"qk_layernorm": True}},
    "qwen3": {"tied": {"tie_word_embeddings": True}, "bias": {"attention_bias": True}},
    "qwen3_moe": {"dense_first": {"mlp_only_layers": [0]}, "every_second": {"decoder_sparse_step": 2}},
    "stablelm": {
        "parallel": {"use_parallel_residual": True},
        "qk_norm": {"qk_layernorm": True},
        "bias": {"use_qkv_bias": True},
    },
    "starcoder2": {"no_bias": {"use_bias": False}},
    "t5": {
        "gated": {"feed_forward_proj": "gated-gelu"},
        "v1_1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    },
}


def module(family: str) -> Any:
    name = {"gemma3_text": "gemma3", "clip_text_model": "clip"}.get(family, family)
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def main_class(family: str) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    return MAIN.get(family) or CAUSAL[family]


def class_names(family: str) -> list[str]:
    """Every class of a family's modeling module that can be built from its text config alone."""
    from transformers import PreTrainedModel

    found: list[str] = []
    for name, kind in vars(module(family)).items():
        ours = (
            isinstance(kind, type) and issubclass(kind, PreTrainedModel) and kind.__module__ == module(family).__name__
        )
        if (
            ours
            and not name.startswith("Pretrained")
            and not name.endswith(("PreTrainedModel", "PretrainedModel", "Stack", "Encoder", "Decoder", "Wrapper"))
        ):
            found.append(name)
    return sorted(set(found) - PICTURES)


def build(family: str, class_name: str | None = None, **changes: Any) -> Any:
    """A model whose norms look trained: neither all ones nor all zeros, no two alike."""
    import torch
    from transformers import CONFIG_MAPPING

    torch.manual_seed(11)
    config = CONFIG_MAPPING[family](**{**SPECIAL, **CONFIGS[family], **changes})
    model = getattr(module(family), class_name or main_class(family))(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 or "norm" in name:
                parameter.add_(0.05 * torch.randn(parameter.shape))
                # transformers starts Nemotron's gains at one, where its formula adds one more; training starts at zero.
                if family == "nemotron" and name.endswith("norm.weight"):
                    parameter.sub_(1.0)
    return model
