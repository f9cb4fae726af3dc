"""Larger models as transformers saves them: the text stack is audited, in both layouts, and the rest is counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from blockaudit import pipeline  # noqa: E402
from blockaudit.records.report import Report  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

TEXT = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64,
}  # fmt: skip
VISION = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 16,
    "patch_size": 8,
}  # fmt: skip
ROPE = {"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 10000.0}


def llava() -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    vision, text = CLIPVisionConfig(**VISION, projection_dim=16), LlamaConfig(**TEXT)
    return LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_index=63))


def gemma3() -> Any:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3TextConfig, SiglipVisionConfig

    vision, text = SiglipVisionConfig(**VISION), Gemma3TextConfig(**TEXT, head_dim=8, sliding_window=8)
    return Gemma3ForConditionalGeneration(Gemma3Config(vision_config=vision, text_config=text, mm_tokens_per_image=4))


def internvl() -> Any:
    from transformers import InternVLConfig, InternVLForConditionalGeneration, Qwen2Config

    vision = VISION | {"image_size": [16, 16], "patch_size": [8, 8]}
    config = InternVLConfig(vision_config=vision, text_config=Qwen2Config(**TEXT), image_token_id=60)
    return InternVLForConditionalGeneration(config)


def qwen2_vl() -> Any:
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    vision = {"depth": 2, "embed_dim": 16, "hidden_size": 16, "num_heads": 4, "mlp_ratio": 2, "patch_size": 8}
    text = TEXT | {"rope_parameters": ROPE}
    return Qwen2VLForConditionalGeneration(Qwen2VLConfig(text_config=text, vision_config=vision, image_token_id=60))


def qwen2_5_vl() -> Any:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    vision = {
        "depth": 2, "hidden_size": 16, "intermediate_size": 32, "num_heads": 4, "out_hidden_size": 16, "patch_size": 8,
    }  # fmt: skip
    text = TEXT | {"rope_parameters": ROPE}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, image_token_id=60)
    return Qwen2_5_VLForConditionalGeneration(config)


def qwen3_vl() -> Any:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    vision = {
        "depth": 2, "hidden_size": 16, "intermediate_size": 32, "num_heads": 4, "out_hidden_size": 16, "patch_size": 8,
        "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
    }  # fmt: skip
    text = TEXT | {"rope_parameters": ROPE, "head_dim": 4}
    return Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=vision, image_token_id=60))


# The model, the family of its text stack, and whether its keys were laid out otherwise once.
MODELS: dict[str, tuple[Callable[[], Any], str, bool]] = {
    "llava": (llava, "llama", True),
    "gemma3": (gemma3, "gemma3_text", True),
    "internvl": (internvl, "qwen2", True),
    "qwen2_vl": (qwen2_vl, "qwen2", True),
    "qwen2_5_vl": (qwen2_5_vl, "qwen2", True),
    "qwen3_vl": (qwen3_vl, "qwen3", False),
}
OTHER = [name for name, (_, _, other) in MODELS.items() if other]


def newer(key: str) -> str:
    """A key as the classes of transformers 4.52 and later have it in memory."""
    if key.startswith(("language_model.lm_head", "lm_head")):
        return key.removeprefix("language_model.")
    for root in ("language_model.model.", "model."):
        if key.startswith(root):
            return f"model.language_model.{key.removeprefix(root)}"
    return f"model.{key}"


def saved(name: str, folder: Path) -> Path:
    torch.manual_seed(7)
    MODELS[name][0]().save_pretrained(folder)
    return folder


def edit(folder: Path, rename: Callable[[str], str] = str, drop: str = "") -> list[str]:
    """Rewrite the weights; returns the keys that were dropped."""
    tensors = {rename(k): t for k, t in load_file(folder / "model.safetensors").items()}
    lost = [key for key in tensors if drop and key.endswith(drop)]
    save_file({k: t for k, t in tensors.items() if k not in lost}, folder / "model.safetensors", {"format": "pt"})
    return lost


def audited(folder: Path, family: str) -> Report:
    report = pipeline.inspect(folder, level="values")
    assert report.manifest is not None
    assert (report.manifest.id, report.manifest.chosen_by) == (family, "config")
    return report


def sound(folder: Path, family: str) -> None:
    """Accepted, and every tensor is one of the text stack's or counted beside it."""
    report = audited(folder, family)
    assert [(f.name, f.message) for f in report.findings if f.severity != "note"] == []
    assert report.verdict == "accepted"
    beside = [f for f in report.findings if f.name == "part-not-covered"]
    assert beside
    counted = [key for f in beside for key in f.tensors]
    keys = load_file(folder / "model.safetensors").keys()
    assert {key for key in keys if "visi" in key or "visual" in key or "projector" in key} == {*counted}
    assert sum(f.observed for f in beside) == len(counted) < len(keys)


@pytest.mark.parametrize("name", MODELS)
def test_as_it_is_saved(name: str, tmp_path: Path) -> None:
    sound(saved(name, tmp_path), MODELS[name][1])


@pytest.mark.parametrize("name", OTHER)
def test_in_the_other_layout(name: str, tmp_path: Path) -> None:
    edit(saved(name, tmp_path), newer)
    sound(tmp_path, MODELS[name][1])


@pytest.mark.parametrize("layout", [str, newer], ids=["saved", "newer"])
@pytest.mark.parametrize("name", OTHER)
def test_a_lost_norm_of_the_text_stack_is_named(name: str, layout: Callable[[str], str], tmp_path: Path) -> None:
    lost = edit(saved(name, tmp_path), layout, drop="layers.1.post_attention_layernorm.weight")
    report = audited(tmp_path, MODELS[name][1])
    assert report.verdict == "rejected"
    errors = [(f.name, list(f.tensors)) for f in report.findings if f.severity == "error"]
    assert errors == [("norm-missing", lost)]


def test_a_lost_tensor_of_the_vision_tower_is_not_covered(tmp_path: Path) -> None:
    edit(saved("llava", tmp_path), drop="vision_tower.encoder.layers.1.layer_norm1.weight")
    assert audited(tmp_path, "llama").verdict == "accepted"


def test_a_config_of_an_older_release_that_names_no_sizes(tmp_path: Path) -> None:
    """LLaVA's hub config leaves what is LLaMA's default to the class: the default is what its tensors are held to."""
    saved("llava", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["text_config"]["hidden_size"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = pipeline.inspect(tmp_path)
    assert [(f.name, f.expected, f.observed) for f in report.findings if f.severity == "error"] == [
        ("config-tensor-mismatch", 4096, 16)
    ]
