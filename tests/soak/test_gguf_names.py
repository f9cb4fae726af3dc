"""What another reader of GGUF makes of the files that we accept: the same tensors, and Gemma's norms less the 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockaudit.checkpoint.gguf.metadata import MODEL_TYPES
from tests.support.gguf import family, write

pytestmark = pytest.mark.soak
ARCHITECTURES = (
    "llama",
    "qwen2",
    "qwen3",
    "qwen3moe",
    "gemma2",
    "gemma3",
    "gpt2",
    "starcoder2",
    "stablelm",
    "nemotron",
)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_reads_every_tensor_of_the_model(architecture: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    it = family(architecture, MODEL_TYPES[architecture])
    it.values["general.name"] = "tiny"
    path = str(write(tmp_path / "model.gguf", it))
    config = transformers.AutoConfig.for_model(**load_gguf_checkpoint(path)["config"])
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    read: dict[str, Any] = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    wanted = set(model.state_dict())
    assert set(read) <= wanted
    assert wanted - set(read) <= {"lm_head.weight"}  # tied
    if architecture.startswith("gemma"):
        norms = [value for key, value in read.items() if key.endswith("layernorm.weight")]
        assert all(abs(float(torch.as_tensor(value).float().mean())) < 0.1 for value in norms)
