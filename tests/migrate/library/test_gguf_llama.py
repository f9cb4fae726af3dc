"""GGUF files of LLaMA to transformers and back, tensors that are not quantised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from blockaudit.pipeline.mapping import check_map
from tests.migrate.library.layouts import gguf_llama
from tests.migrate.library.layouts.sizes import PLAIN, SQUARE, Sizes, tokens
from tests.migrate.library.proving import agree, back, computed, same_bytes, there

pytest.importorskip("gguf")
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("sizes", "tied"), [(PLAIN, False), (PLAIN, True), (SQUARE, False)])
def test_gguf(tmp_path: Path, dtype: str, sizes: Sizes, *, tied: bool) -> None:
    config = gguf_llama.config(sizes)
    weights = gguf_llama.weights(sizes, 1, tied=tied)
    source = gguf_llama.save(weights, config, tmp_path / "source", dtype)
    stored = {k: t.to(DTYPES[dtype]) if t.ndim == 2 else t for k, t in weights.items()}
    target = there("gguf_llama", source, tmp_path / "target")
    wanted = gguf_llama.logits({k: t.float() for k, t in stored.items()}, config, tokens(sizes))
    agree(computed(target, tokens(sizes)), wanted)
    same_bytes(back("gguf_llama", target, tmp_path / "again"), stored)


def test_stretched_positions_are_carried(tmp_path: Path) -> None:
    config = gguf_llama.config(PLAIN) | {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    weights = gguf_llama.weights(PLAIN, 2)
    target = there("gguf_llama", gguf_llama.save(weights, config, tmp_path / "source"), tmp_path / "target")
    said = json.loads((target / "config.json").read_text())
    assert (said["rope_theta"], said["rope_scaling"]) == (5000.0, {"rope_type": "linear", "factor": 4.0})
    agree(computed(target, tokens(PLAIN)), gguf_llama.logits(weights, config, tokens(PLAIN)))


def test_frequencies_that_no_config_holds_are_refused(tmp_path: Path) -> None:
    """Llama 3.1 in GGUF: the factor of each frequency is a tensor, and what it was made from is written nowhere."""
    weights = gguf_llama.weights(PLAIN, 2) | {"rope_freqs.weight": torch.full((4,), 2.0)}
    report = check_map("gguf_llama", gguf_llama.save(weights, gguf_llama.config(PLAIN), tmp_path / "source"))
    assert [(f.name, f.tensors) for f in report.findings] == [("map-not-total", ("rope_freqs.weight",))]


def test_quantised_tensors_are_refused(tmp_path: Path) -> None:
    sizes = Sizes(d_model=64, d_ff=96)
    weights = gguf_llama.weights(sizes, 1)
    source = gguf_llama.save(weights, gguf_llama.config(sizes), tmp_path / "source", "Q8_0")
    report = check_map("gguf_llama", source)
    assert [(f.name, f.observed) for f in report.findings] == [("quantization-mismatch", "Q8_0")]
    assert "blk.0.attn_q.weight" in report.findings[0].tensors
