"""Text encoders as transformers saves them, in folders as diffusers and sentence-transformers lay them out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import (  # noqa: E402
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPModel,
    CLIPTextConfig,
    CLIPTextModel,
    T5Config,
    T5EncoderModel,
)

import blockaudit  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
INDEX = {
    "_class_name": "FluxPipeline", "_diffusers_version": "0.30.0",
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"], "image_encoder": [None, None],
    "text_encoder": ["transformers", "CLIPTextModel"], "text_encoder_2": ["transformers", "T5EncoderModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"], "transformer": ["diffusers", "FluxTransformer2DModel"],
}  # fmt: skip


def flux(folder: Path) -> Path:
    """FLUX's folder, its denoiser a stand-in."""
    clip = CLIPTextModel(CLIPTextConfig(**SIZES, max_position_embeddings=16))
    clip.save_pretrained(folder / "text_encoder")
    t5 = T5EncoderModel(T5Config(d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4, vocab_size=64))
    t5.save_pretrained(folder / "text_encoder_2")
    (folder / "transformer").mkdir()
    save_file({"x": torch.zeros(2)}, folder / "transformer" / "diffusion_pytorch_model.safetensors")
    (folder / "model_index.json").write_text(json.dumps(INDEX))
    return folder


@pytest.mark.parametrize(
    ("part", "other", "family"),
    [("text_encoder", "text_encoder_2", "clip_text_model"), ("text_encoder_2", "text_encoder", "t5")],
)
def test_each_text_encoder_has_a_report(part: str, other: str, family: str, tmp_path: Path) -> None:
    report = blockaudit.inspect(flux(tmp_path), part=part, level="values")
    assert (report.verdict, report.subject.source) == ("accepted", f"{tmp_path}/{part}")
    assert report.manifest is not None
    assert report.manifest.id == family
    notes = {f.subject: f.message for f in report.findings if f.name == "part-not-covered"}
    assert {*notes} == {other, "transformer", "model_index.json"}
    assert "transformer/diffusion_pytorch_model.safetensors" in notes["transformer"]
    assert "tokenizer (CLIPTokenizer)" in notes["model_index.json"]


def test_a_lost_norm_of_a_text_encoder(tmp_path: Path) -> None:
    file = flux(tmp_path) / "text_encoder_2" / "model.safetensors"
    tensors, lost = load_file(file), "encoder.block.1.layer.0.layer_norm.weight"
    del tensors[lost]
    save_file(tensors, file, {"format": "pt"})
    report = blockaudit.inspect(tmp_path, part="text_encoder_2")
    assert [(f.name, f.tensors) for f in report.findings if f.severity == "error"] == [("norm-missing", (lost,))]


@pytest.mark.parametrize("rooted", [False, True], ids=["as it is saved now", "below text_model"])
def test_stable_diffusion_has_one_text_encoder(rooted: bool, tmp_path: Path) -> None:
    folder = flux(tmp_path)
    index = {**INDEX, "_class_name": "StableDiffusionPipeline"}
    del index["text_encoder_2"]
    (folder / "model_index.json").write_text(json.dumps(index))
    file = folder / "text_encoder" / "model.safetensors"
    head = "text_model." if rooted else ""
    tensors = {f"{head}{key}": tensor for key, tensor in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    report = blockaudit.inspect(folder)
    assert report.verdict == "accepted"
    # The class loads both, and what is older is said to be so.
    assert [f.name for f in report.findings if f.severity != "note"] == ["prefix-mismatch"] * rooted
    del tensors[f"{head}final_layer_norm.weight"]
    save_file(tensors, file, {"format": "pt"})
    assert "final-norm-missing" in {f.name for f in blockaudit.inspect(folder).findings}


def test_the_text_stack_of_clip(tmp_path: Path) -> None:
    text = {**SIZES, "max_position_embeddings": 16}
    vision = {k: v for k, v in SIZES.items() if k != "vocab_size"} | {"image_size": 16, "patch_size": 8}
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).save_pretrained(tmp_path)
    report = blockaudit.inspect(tmp_path, level="values,graph")
    assert report.verdict == "accepted"
    assert [f.name for f in report.findings if f.severity != "note"] == []
    beside = {f.subject for f in report.findings if f.name == "part-not-covered"}
    assert beside == {"logit_scale", "vision_model", "visual_projection"}


@pytest.mark.parametrize("path", ["", "0_Transformer"])
def test_a_sentence_transformers_folder(path: str, tmp_path: Path) -> None:
    BertModel(BertConfig(**SIZES)).save_pretrained(tmp_path / path)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text("{}")
    kinds = {path: "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    listed = [
        {"idx": i, "name": str(i), "path": where, "type": f"sentence_transformers.models.{kind}"}
        for i, (where, kind) in enumerate(kinds.items())
    ]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    report = blockaudit.inspect(tmp_path)
    assert report.verdict == "accepted"
    (note,) = [f for f in report.findings if f.name == "part-not-covered"]
    assert note.message == "modules without weights are not covered: 1_Pooling (Pooling), 2_Normalize (Normalize)"
