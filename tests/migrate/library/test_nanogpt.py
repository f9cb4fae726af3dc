"""nanoGPT's ckpt.pt to transformers' GPT-2 and back: Conv1D, the tied head, the masks."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockaudit.pipeline.converting import convert
from blockaudit.pipeline.mapping import check_map
from tests.migrate.library.layouts import nanogpt
from tests.migrate.library.layouts.sizes import PLAIN, tokens
from tests.migrate.library.proving import WRITING, agree, back, computed, same_bytes, stored, there


@pytest.mark.parametrize("masks", [False, True], ids=["fused attention", "masks stored"])
def test_nanogpt(tmp_path: Path, *, masks: bool) -> None:
    config, weights = nanogpt.config(PLAIN), nanogpt.weights(PLAIN, 6, masks=masks)
    nanogpt.save(weights, config, tmp_path / "source")
    target = there("nanogpt_gpt2", tmp_path / "source", tmp_path / "target")
    agree(computed(target, tokens(PLAIN)), nanogpt.logits(weights, config, tokens(PLAIN)))
    # Masks are made, not stored, and the head is the embedding.
    kept = {k: v for k, v in weights.items() if k != "lm_head.weight" and not k.endswith(".attn.bias")}
    assert stored(target).keys() == kept.keys()
    same_bytes(back("nanogpt_gpt2", target, tmp_path / "again"), kept)


def test_a_compiled_model_has_a_prefix(tmp_path: Path) -> None:
    config, weights = nanogpt.config(PLAIN), nanogpt.weights(PLAIN, 6, masks=True)
    compiled = {f"_orig_mod.{key}": tensor for key, tensor in weights.items()}
    nanogpt.save(compiled, config, tmp_path / "source")
    target = there("nanogpt_compile_gpt2", tmp_path / "source", tmp_path / "target")
    agree(computed(target, tokens(PLAIN)), nanogpt.logits(weights, config, tokens(PLAIN)))
    kept = {k: v for k, v in compiled.items() if "lm_head" not in k and not k.endswith(".attn.bias")}
    same_bytes(back("nanogpt_compile_gpt2", target, tmp_path / "again"), kept)


def test_square_matrices_are_transposed_too(tmp_path: Path) -> None:
    weights = nanogpt.weights(PLAIN, 6)
    nanogpt.save(weights, nanogpt.config(PLAIN), tmp_path / "source")
    found = stored(there("nanogpt_gpt2", tmp_path / "source", tmp_path / "target"))
    key = "transformer.h.1.attn.c_proj.weight"
    assert found[key].shape == weights[key].shape == (32, 32)
    assert found[key].equal(weights[key].T.contiguous())


def test_a_model_without_biases_is_given_none(tmp_path: Path) -> None:
    """GPT-2 has biases: zeros would be an invention, and the norms' another family."""
    weights = {k: v for k, v in nanogpt.weights(PLAIN, 6).items() if not k.endswith(".bias")}
    nanogpt.save(weights, {**nanogpt.config(PLAIN), "bias": False}, tmp_path / "source")
    report = check_map("nanogpt_gpt2", tmp_path / "source")
    assert report.verdict == "rejected"
    assert {"map-not-total", "topology-change-needs-retraining"} & {f.name for f in report.findings}


def test_a_head_that_is_not_the_embedding_is_refused(tmp_path: Path) -> None:
    weights = nanogpt.weights(PLAIN, 6)
    weights["lm_head.weight"] = weights["lm_head.weight"] + 1
    nanogpt.save(weights, nanogpt.config(PLAIN), tmp_path / "source")
    report = convert(tmp_path / "source", tmp_path / "target", map_="nanogpt_gpt2", writing=WRITING)
    assert report.verdict == "rejected"
    assert "map-alias-lost" in {f.name for f in report.findings}
    assert not (tmp_path / "target").exists()
