"""Adapters that peft itself saved, alone and on their base, and what is said of them once they are damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from safetensors.torch import load_file, save_file  # noqa: E402

import blockaudit  # noqa: E402

pytestmark = pytest.mark.soak
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

ROOT = "base_model.model.model.layers.1.self_attn.q_proj"
LORA: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": ["q_proj", "v_proj"]},
    "every linear layer": {"target_modules": "all-linear"},
    "DoRA, patterns, rank-stabilised": {
        "target_modules": ["q_proj", "down_proj"], "use_dora": True, "use_rslora": True,
        "rank_pattern": {"down_proj": 2}, "alpha_pattern": {"layers.0.self_attn.q_proj": 16},
    },
    "a pattern of patterns": {"target_modules": ["q_proj", "v_proj"], "rank_pattern": {r".*\.(v)_proj": 2}},
    "modules that are saved": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "norm"]},
    "embeddings": {"target_modules": ["embed_tokens", "q_proj", "lm_head"]},
    "embeddings with DoRA": {"target_modules": ["embed_tokens", "q_proj"], "use_dora": True},
    "rows of an embedding": {"target_modules": ["q_proj"], "trainable_token_indices": [1, 2]},
    "a bias of its own": {"target_modules": ["q_proj"], "lora_bias": True},
    "a pattern of modules": {"target_modules": r".*\.1\.self_attn\.(q|v)_proj"},
    "one layer": {"target_modules": ["q_proj"], "layers_to_transform": [1]},
    "all but one layer": {"target_modules": ["q_proj"], "exclude_modules": ["layers.0.self_attn.q_proj"]},
    "a bare parameter": {"target_modules": ["q_proj"], "target_parameters": ["mlp.up_proj.weight"]},
}  # fmt: skip
GPT2: dict[str, dict[str, Any]] = {
    "Conv1D": {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True},
    "Conv1D that is not declared": {"target_modules": ["c_attn"]},
    "Conv1D, every bias": {"target_modules": ["c_attn"], "bias": "all"},
    "Conv1D, biases of targets": {"target_modules": ["c_attn"], "bias": "lora_only"},
}
OTHER: dict[str, Callable[[], Any]] = {
    "IA3": lambda: peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "PROMPT_TUNING": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "PREFIX_TUNING": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "P_TUNING": lambda: peft.PromptEncoderConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, encoder_hidden_size=8),
}
UNREAD: dict[str, Callable[[], Any]] = {
    "ADALORA": lambda: peft.AdaLoraConfig(target_modules=["q_proj"], total_step=10),
    "LOHA": lambda: peft.LoHaConfig(r=4, target_modules=["q_proj"]),
    "LOKR": lambda: peft.LoKrConfig(r=4, target_modules=["q_proj"]),
}


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=64,
        )
    )


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    return GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=4, vocab_size=64, n_positions=16))


def saved(folder: Path, config: Any, model: Callable[[], Any] = llama) -> tuple[Path, Path]:
    """An adapter and its base."""
    adapter, base = folder / "adapter", folder / "base"
    model().save_pretrained(base)
    of = model()
    of.name_or_path = of.config._name_or_path = str(base)
    peft.get_peft_model(of, config).save_pretrained(adapter)
    return adapter, base


def lora(**settings: Any) -> Any:
    return peft.LoraConfig(r=4, lora_alpha=8, **settings)


def grave(report: blockaudit.Report) -> list[tuple[str, str]]:
    return [(f.name, f.message) for f in report.findings if f.severity != "note"]


def accepted(adapter: Path, base: Path) -> None:
    """Alone: nothing but that it is an adapter. On its base: accepted, every number included."""
    alone = blockaudit.inspect(adapter)
    assert [name for name, _ in grave(alone)] == ["adapter-only"]
    assert alone.verdict == "unverified"
    assert str(base) in alone.findings[0].message
    report = blockaudit.inspect(adapter, base=base, level="values")
    assert grave(report) == []
    assert (report.verdict, report.subject.base) == ("accepted", str(base))


@pytest.mark.parametrize("settings", LORA.values(), ids=LORA)
def test_lora(settings: dict[str, Any], tmp_path: Path) -> None:
    accepted(*saved(tmp_path, lora(**settings)))


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("settings", GPT2.values(), ids=GPT2)
def test_lora_on_layers_that_store_their_weights_turned(settings: dict[str, Any], tmp_path: Path) -> None:
    accepted(*saved(tmp_path, lora(**settings), gpt2))


@pytest.mark.parametrize("config", OTHER.values(), ids=OTHER)
def test_other_kinds_that_are_read(config: Callable[[], Any], tmp_path: Path) -> None:
    accepted(*saved(tmp_path, config()))


@pytest.mark.parametrize("kind", UNREAD)
def test_a_kind_that_is_not_read_is_named_and_nothing_is_guessed(kind: str, tmp_path: Path) -> None:
    adapter, base = saved(tmp_path, UNREAD[kind]())
    for source in (None, base):
        report = blockaudit.inspect(adapter, base=source)
        ((name, message),) = grave(report)
        assert (name, report.verdict) == ("adapter-only", "unverified")
        assert kind in message


def test_an_adapter_of_a_larger_model(tmp_path: Path) -> None:
    """The class names modules by other roots than the file, one for the text stack and one for the vision tower."""
    from tests.families.test_multimodal import llava

    accepted(*saved(tmp_path, lora(target_modules=["q_proj", "v_proj"]), llava))


def test_an_adapter_saved_as_a_pickle(tmp_path: Path) -> None:
    adapter, base = saved(tmp_path, lora(target_modules=["q_proj"]))
    torch.save(load_file(adapter / "adapter_model.safetensors"), adapter / "adapter_model.bin")
    (adapter / "adapter_model.safetensors").unlink()
    accepted(adapter, base)


def test_a_vocabulary_that_was_made_larger_for_the_adapter(tmp_path: Path) -> None:
    """peft#2415: the adapter brings 66 rows, the base and its config have 64."""

    def larger() -> Any:
        model = llama()
        model.resize_token_embeddings(66)
        return model

    adapter, base = saved(
        tmp_path, lora(target_modules=["q_proj"], modules_to_save=["lm_head", "embed_tokens"]), larger
    )
    llama().save_pretrained(base)
    report = blockaudit.inspect(adapter, base=base)
    assert [(f.name, f.expected, f.observed) for f in report.findings if f.severity == "error"] == [
        ("vocab-size-mismatch", 64, 66)
    ]


def drop(*keys: str) -> Callable[[Path], None]:
    def damage(adapter: Path) -> None:
        tensors = load_file(adapter / "adapter_model.safetensors")
        save_file({k: t for k, t in tensors.items() if k not in keys}, adapter / "adapter_model.safetensors")

    return damage


def settings(**changes: Any) -> Callable[[Path], None]:
    def damage(adapter: Path) -> None:
        path = adapter / "adapter_config.json"
        said = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({k: v for k, v in said.items() if v != "gone"}))

    return damage


# What is done to the plain adapter, the rule that names it, and a tensor that it names.
DAMAGE: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "B is lost": (drop(f"{ROOT}.lora_B.weight"), "adapter-incomplete", f"{ROOT}.lora_A.weight"),
    "A is lost": (drop(f"{ROOT}.lora_A.weight"), "adapter-incomplete", f"{ROOT}.lora_B.weight"),
    "a layer is lost": (
        drop(f"{ROOT}.lora_A.weight", f"{ROOT}.lora_B.weight"),
        "adapter-incomplete",
        "model.layers.1.self_attn.q_proj.weight",
    ),
    "r is another one": (settings(r=8), "adapter-shape-mismatch", f"{ROOT}.lora_A.weight"),
    "alpha is gone": (settings(lora_alpha="gone"), "config-invalid", ""),
    "targets are others": (settings(target_modules=["v_proj"]), "adapter-target-mismatch", f"{ROOT}.lora_A.weight"),
}


@pytest.mark.parametrize("case", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named(case: tuple[Callable[[Path], None], str, str], tmp_path: Path) -> None:
    damage, rule, tensor = case
    adapter, base = saved(tmp_path, lora(target_modules=["q_proj", "v_proj"]))
    damage(adapter)
    report = blockaudit.inspect(adapter, base=base)
    assert report.verdict == "rejected"
    assert {f.name for f in report.findings if f.severity == "error"} == {rule}
    assert tensor in {key for f in report.findings for key in (*f.tensors, "")}


def test_an_adapter_on_another_base(tmp_path: Path) -> None:
    adapter, _ = saved(tmp_path / "a", lora(target_modules=["q_proj"]))
    gpt2().save_pretrained(tmp_path / "gpt2")
    report = blockaudit.inspect(adapter, base=tmp_path / "gpt2")
    assert [f.name for f in report.findings if f.severity == "error"] == ["adapter-target-mismatch"]
