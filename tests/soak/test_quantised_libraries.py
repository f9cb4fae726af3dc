"""Checkpoints that the libraries themselves quantise and save: accepted as they are, named right with one fault.

torchao and bitsandbytes through transformers, compressed-tensors by its own compressor, FP8 by transformers' quantiser.
GPTQ and AWQ do not install without CUDA: tests/rules/test_quantised.py writes their public format by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.audit import inspect

pytestmark = pytest.mark.soak
torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

UP0 = "model.layers.0.mlp.up_proj."
# No two axes alike but q and o: a transpose would show.
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 80, "tie_word_embeddings": False,
}  # fmt: skip
Parts = dict[str, Any]
Spoil = Callable[[Parts], None]


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LLaMA in bfloat16 whose norms look trained."""
    folder = tmp_path_factory.mktemp("plain")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).to(torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder


def loaded(plain: Path, **more: Any) -> Any:
    return transformers.LlamaForCausalLM.from_pretrained(plain, dtype=torch.bfloat16, **more)


def spoilt(source: Path, target: Path, spoil: Spoil) -> Path:
    """A copy with its tensors changed; metadata and config as they are."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    target.mkdir()
    with safe_open(source / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    tensors = load_file(source / "model.safetensors")
    spoil(tensors)
    save_file(tensors, target / "model.safetensors", metadata)
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    return target


def held(source: Path, tmp_path: Path, key: str, spoil: Spoil) -> None:
    """Accepted with every shape known; spoilt, one finding names the tensor; undeclared, the scheme."""
    clean = inspect(source)
    assert (clean.grave, clean.status) == ([], 0), clean.findings
    assert clean.report is not None
    assert clean.report["subject"]["parameters"] == 2 * 80 * 64 + 2 * (64 * 96 * 3 + 64 * 64 * 2 + 64 * 32 * 2) + 5 * 64
    wrong = inspect(spoilt(source, tmp_path / "spoilt", spoil))
    assert wrong.status == 1
    assert [(f["name"], f["tensors"]) for f in wrong.findings] == [("quantization-mismatch", [key])], wrong.findings
    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    (source / "config.json").write_text(json.dumps(config))
    assert inspect(source).grave == ["quantization-mismatch"]


def halved(key: str) -> Spoil:
    """A scale with half of its rows."""

    def spoil(tensors: Parts) -> None:
        tensors[key] = tensors[key][: len(tensors[key]) // 2].clone()

    return spoil


def torchao_configs() -> Iterator[tuple[str, Any]]:
    ao: Any = pytest.importorskip("torchao.quantization")
    yield "int8 rows", ao.Int8WeightOnlyConfig(version=2)
    yield "int8 groups", ao.Int8WeightOnlyConfig(version=2, granularity=ao.PerGroup(32))
    yield "float8", ao.Float8WeightOnlyConfig()
    yield "intx", ao.IntxWeightOnlyConfig(granularity=ao.PerGroup(32), version=2)


@pytest.mark.parametrize("number", range(4))
def test_torchao(plain: Path, tmp_path: Path, number: int) -> None:
    _, config = list(torchao_configs())[number]
    model = loaded(plain, quantization_config=transformers.TorchAoConfig(config))
    model.save_pretrained(tmp_path / "ao")
    key = f"{UP0}_weight_scale"
    held(tmp_path / "ao", tmp_path, key, halved(key))


def test_torchao_pickled(plain: Path, tmp_path: Path) -> None:
    """Tensor subclasses in a pickle are named, and not built."""
    _, config = next(torchao_configs())
    model = loaded(plain, quantization_config=transformers.TorchAoConfig(config))
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    outcome = inspect(tmp_path / "pytorch_model.bin")
    (unsafe,) = [f for f in outcome.findings if f["name"] == "unsafe-pickle"]
    assert "_rebuild_wrapper_subclass" in unsafe["message"]
    assert outcome.status == 1


BNB: dict[str, dict[str, Any]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "fp4 nested": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": True},
    "nf4 in bfloat16": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_quant_storage": "bfloat16"},
    "int8": {"load_in_8bit": True},
}


@pytest.mark.parametrize("name", BNB)
def test_bitsandbytes(plain: Path, tmp_path: Path, name: str) -> None:
    pytest.importorskip("bitsandbytes")
    config = transformers.BitsAndBytesConfig(**BNB[name])
    loaded(plain, quantization_config=config, device_map="cpu").save_pretrained(tmp_path / "bnb")
    key = f"{UP0}SCB" if name == "int8" else f"{UP0}weight.absmax"
    held(tmp_path / "bnb", tmp_path, key, halved(key))


WEIGHTS: dict[str, dict[str, Any]] = {
    "pack-quantized": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
    "pack-quantized 8": {"num_bits": 8, "type": "int", "strategy": "channel"},
    "int-quantized": {"num_bits": 8, "type": "int", "strategy": "channel"},
    "naive-quantized": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False},
    "float-quantized": {"num_bits": 8, "type": "float", "strategy": "channel"},
    "float-quantized blocks": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 32]},
    "nvfp4-pack-quantized": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
    "mxfp4-pack-quantized": {
        "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
def test_compressed_tensors(plain: Path, tmp_path: Path, name: str) -> None:
    library: Any = pytest.importorskip("compressed_tensors.quantization")
    compressors: Any = pytest.importorskip("compressed_tensors.compressors")
    group: dict[str, Any] = {"targets": ["Linear"], "weights": WEIGHTS[name], "format": name.split()[0]}
    if name == "int-quantized":  # eight bits of weight and activation are not packed
        group["input_activations"] = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
    config = library.QuantizationConfig(
        config_groups={"group_0": group}, format=name.split()[0], ignore=["lm_head"], quantization_status="frozen"
    )
    model = loaded(plain)
    library.apply_quantization_config(model, config)
    for key, parameter in model.named_parameters():
        if key.endswith("scale"):  # what a calibration would have set
            torch.nn.init.constant_(parameter, 0.01 if parameter.dtype.is_floating_point else 1)
    compressor = compressors.ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    model.save_pretrained(tmp_path / "ct")
    compressor.update_config(str(tmp_path / "ct"))
    key = f"{UP0}weight_scale"
    held(tmp_path / "ct", tmp_path, key, halved(key))


@pytest.mark.parametrize("block", [(32, 32), (16, 32)])
def test_fine_grained_fp8(plain: Path, tmp_path: Path, block: tuple[int, int]) -> None:
    """transformers quantises on a GPU alone; its operation and its config are asked by themselves."""
    from safetensors.torch import load_file, save_file
    from transformers.integrations.finegrained_fp8 import Fp8Quantize

    config: Any = transformers.FineGrainedFP8Config(weight_block_size=block)
    operation: Any = Fp8Quantize(SimpleNamespace(quantization_config=config))
    tensors: Parts = {}
    for key, value in load_file(plain / "model.safetensors").items():
        tensors |= operation._quantize_one(key, value) if key.endswith("_proj.weight") else {key: value}
    (tmp_path / "fp8").mkdir()
    save_file(tensors, tmp_path / "fp8/model.safetensors", {"format": "pt"})
    said = json.loads((plain / "config.json").read_text())
    said["quantization_config"] = json.loads(config.to_json_string(use_diff=False))
    (tmp_path / "fp8/config.json").write_text(json.dumps(said))
    key = f"{UP0}weight_scale_inv"
    held(tmp_path / "fp8", tmp_path, key, halved(key))
