"""Record what transformers writes for tiny models, as tests/support/keys/*.json (needs torch; run by hand).

    python -m tests.support.record_keys

d=8, heads=2, kv=1, head_dim=4, layers=2, vocabulary=16, d_ff=12: no two of these are equal, so no fault hides.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

KEYS = Path(__file__).parent / "keys"
BASE: dict[str, Any] = {
    "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 16,
    "max_position_embeddings": 32, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GQA = {**BASE, "num_key_value_heads": 1}
HEAD = {**GQA, "head_dim": 4}
GPT2 = {"n_embd": 8, "n_inner": 12, "n_layer": 2, "n_head": 2, "vocab_size": 16, "n_positions": 32}
T5 = {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2, "vocab_size": 16}
OPT = {**{k: v for k, v in BASE.items() if k != "intermediate_size"}, "ffn_dim": 12, "word_embed_proj_dim": 8}
FALCON = {**{k: v for k, v in BASE.items() if k != "intermediate_size"}, "ffn_hidden_size": 12}
# file: (model type, class, config)
RECORDED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "LlamaForCausalLM", HEAD),
    "llama_head6": ("llama", "LlamaForCausalLM", {**HEAD, "head_dim": 6}),
    "llama_bias": ("llama", "LlamaForCausalLM", {**HEAD, "attention_bias": True, "mlp_bias": True}),
    "llama_tied": ("llama", "LlamaForCausalLM", {**HEAD, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", GQA),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", HEAD),
    "qwen3_moe": (
        "qwen3_moe", "Qwen3MoeForCausalLM",
        {**HEAD, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6},
    ),
    "gemma2": ("gemma2", "Gemma2ForCausalLM", {**HEAD, "query_pre_attn_scalar": 4, "sliding_window": 16}),
    "gpt2": ("gpt2", "GPT2LMHeadModel", GPT2),
    "gpt_neox": ("gpt_neox", "GPTNeoXForCausalLM", BASE),
    "bert": ("bert", "BertForMaskedLM", {**BASE, "type_vocab_size": 3}),
    "t5": ("t5", "T5ForConditionalGeneration", T5),
    "opt": ("opt", "OPTForCausalLM", OPT),
    "opt_post_ln": ("opt", "OPTForCausalLM", {**OPT, "do_layer_norm_before": False}),
    "deepseek_v3": (
        "deepseek_v3", "DeepseekV3ForCausalLM",
        {
            **BASE, "num_key_value_heads": 2, "q_lora_rank": 5, "kv_lora_rank": 3, "qk_nope_head_dim": 4,
            "qk_rope_head_dim": 2, "v_head_dim": 7, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
            "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "moe_intermediate_size": 6,
            "num_experts_per_tok": 2, "n_shared_experts": 1,
        },
    ),
    "cohere": ("cohere", "CohereForCausalLM", GQA),
    "cohere_qk": ("cohere", "CohereForCausalLM", {**GQA, "use_qk_norm": True}),
    "olmo2": ("olmo2", "Olmo2ForCausalLM", GQA),
    "granite": (
        "granite", "GraniteForCausalLM",
        {
            **GQA, "residual_multiplier": 0.22, "embedding_multiplier": 12.0, "attention_multiplier": 0.5,
            "logits_scaling": 8.0,
        },
    ),
    "falcon": ("falcon", "FalconForCausalLM", FALCON),
    "bloom": ("bloom", "BloomForCausalLM", {"hidden_size": 8, "n_layer": 2, "n_head": 2, "vocab_size": 16}),
    "albert": ("albert", "AlbertForMaskedLM", {**BASE, "embedding_size": 5, "type_vocab_size": 3}),
    "stablelm": ("stablelm", "StableLmForCausalLM", GQA),
    "stablelm_parallel": ("stablelm", "StableLmForCausalLM", {**GQA, "use_parallel_residual": True}),
}  # fmt: skip


def record(model_type: str, class_name: str, given: dict[str, Any]) -> dict[str, Any]:
    """config.json and `key template -> "dtype size size"`, as save_pretrained wrote them."""
    import transformers
    from safetensors import safe_open

    model = getattr(transformers, class_name)(transformers.CONFIG_MAPPING[model_type](**given))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text())
        with safe_open(str(Path(folder) / "model.safetensors"), "pt") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
            keys = {k: " ".join([s.get_dtype(), *map(str, s.get_shape())]) for k, s in slices.items()}
    return {"config": config, "keys": folded(keys)}


def folded(keys: dict[str, str]) -> dict[str, str]:
    """Runs of numbers as `{0-1}`, where every key of the run is there with the same shape."""
    for _ in range(3):
        groups: dict[tuple[str, str, str], list[int]] = {}
        for key, shape in keys.items():
            hit = re.search(r"(?<=\.)(\d+)(?=\.)", key)
            if hit:
                groups.setdefault((key[: hit.start()], key[hit.end() :], shape), []).append(int(hit[1]))
        for (head, tail, shape), numbers in groups.items():
            low, high = min(numbers), max(numbers)
            assert sorted(numbers) == list(range(low, high + 1)), (head, tail, numbers)
            for n in numbers:
                del keys[f"{head}{n}{tail}"]
            keys[f"{head}{{{low}-{high}}}{tail}"] = shape
    return dict(sorted(keys.items()))


def main() -> None:
    KEYS.mkdir(exist_ok=True)
    for name, what in RECORDED.items():
        (KEYS / f"{name}.json").write_text(json.dumps(record(*what), indent=1) + "\n")


if __name__ == "__main__":
    main()
