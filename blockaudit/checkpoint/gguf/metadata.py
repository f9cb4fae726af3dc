"""What the metadata of a GGUF file says of the model, under the words that manifests use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from blockaudit.checkpoint.gguf.header import Array

# GGUF's name of an architecture -> the model type that the library knows it by. Architectures that are not here are
# not audited: nobody has held a converted checkpoint of theirs against a manifest.
MODEL_TYPES = {
    "llama": "llama", "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3_text", "qwen2": "qwen2",
    "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "phi2": "phi", "phi3": "phi3", "gpt2": "gpt2", "gptneox": "gpt_neox",
    "starcoder2": "starcoder2", "stablelm": "stablelm", "olmo": "olmo", "olmo2": "olmo2",
    "granite": "granite", "nemotron": "nemotron", "glm4": "glm4", "command-r": "cohere",
}  # fmt: skip
# Where a count in the metadata tells two model types of one architecture apart.
WITH_EXPERTS = {"llama": "mixtral"}
# Dimension of a manifest -> keys of the metadata, the first that is there; all stand behind the architecture's name.
DIMS: dict[str, tuple[str, ...]] = {
    "d_model": ("embedding_length",), "n_layers": ("block_count",), "n_heads": ("attention.head_count",),
    "n_kv": ("attention.head_count_kv",), "d_head": ("attention.key_length",), "d_ff": ("feed_forward_length",),
    "d_moe": ("expert_feed_forward_length",), "n_experts": ("expert_count",), "n_ctx": ("context_length",),
    "vocab": ("vocab_size",),
}  # fmt: skip
# Last words of a contract field -> the same.
FIELDS: dict[str, tuple[str, ...]] = {
    ".epsilon": ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"),
    ".parallel": ("use_parallel_residual",),
    ".embedding.scale": ("embedding_scale",),
    "_branch_scale": ("residual_scale",),
    ".self_attention.softcap": ("attn_logit_softcapping",),
    "logits.softcap": ("final_logit_softcapping",),
    "logits.scale": ("logit_scale",),
}
# Last words of what a branch computes -> the same.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    ".rotary.theta": ("rope.freq_base",),
    ".rotary.max_length": ("context_length",),
}
# Keys of transformers' `rope_scaling` -> the same.
_SCALING: dict[str, tuple[str, ...]] = {
    "factor": ("rope.scaling.factor",),
    "original_max_position_embeddings": ("rope.scaling.original_context_length",),
}
_ARCHITECTURE = "general.architecture"
_LONGEST = 100
_TOKENS = "tokenizer.ggml.tokens"


class Said(msgspec.Struct, frozen=True):
    """A value of the metadata, and the key that gives it."""

    value: Any
    key: str


def architecture(metadata: Mapping[str, Any]) -> str:
    """GGUF's own name of the architecture, empty where the metadata gives none that could be one."""
    name = metadata.get(_ARCHITECTURE)
    return name if isinstance(name, str) and len(name) <= _LONGEST else ""


def model_type(metadata: Mapping[str, Any]) -> str:
    """The model type of the library, else one that no library has."""
    name = architecture(metadata)
    experts = metadata.get(f"{name}.expert_count")
    if name in WITH_EXPERTS and isinstance(experts, int) and experts > 0:
        return WITH_EXPERTS[name]
    return MODEL_TYPES.get(name, f"gguf:{name}")


def said(metadata: Mapping[str, Any], keys: tuple[str, ...]) -> Said | None:
    """The value at the first of these keys that is there. One for each layer counts where all are the same."""
    for key in (f"{architecture(metadata)}.{k}" for k in keys):
        value = metadata.get(key)
        if isinstance(value, Array):
            value = value.numbers[0] if value.length and len(set(value.numbers)) == 1 else None
        if isinstance(value, int | float):
            return Said(value, key)
    return None


def scaling(metadata: Mapping[str, Any]) -> Said | None:
    """How rotary frequencies are stretched, in the words of transformers' `rope_scaling`; None where they are not.

    The type keeps GGUF's name (`linear`, `yarn`, `longrope`), which is transformers' too.
    """
    key = f"{architecture(metadata)}.rope.scaling.type"
    kind = metadata.get(key)
    if not isinstance(kind, str) or kind == "none":
        return None
    given = {name: found.value for name, keys in _SCALING.items() if (found := said(metadata, keys)) is not None}
    return Said({"rope_type": kind[:_LONGEST], **given}, key)


def vocabulary(metadata: Mapping[str, Any]) -> Said | None:
    """The number of tokens: as such, else the length of their list."""
    tokens = metadata.get(_TOKENS)
    listed = Said(tokens.length, _TOKENS) if isinstance(tokens, Array) else None
    return said(metadata, DIMS["vocab"]) or listed
