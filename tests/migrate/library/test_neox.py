"""GPT-NeoX's own library to transformers and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockaudit.pipeline.mapping import check_map
from tests.migrate.library.layouts import neox
from tests.migrate.library.layouts.sizes import SQUARE, Sizes, tokens
from tests.migrate.library.proving import agree, back, computed, same_bytes, saved, there

WIDE = Sizes(n_layers=3)


@pytest.mark.parametrize(
    ("sizes", "parallel", "tied"),
    [(WIDE, True, False), (WIDE, False, False), (WIDE, True, True), (SQUARE, True, False)],
    ids=["parallel", "sequential", "tied", "square"],
)
def test_neox(tmp_path: Path, sizes: Sizes, *, parallel: bool, tied: bool) -> None:
    config, weights = neox.config(sizes, parallel=parallel, tied=tied), neox.weights(sizes, 1, tied=tied)
    target = there("neox_native", saved(weights, config, tmp_path / "source"), tmp_path / "target")
    agree(computed(target, tokens(sizes)), neox.logits(weights, config, tokens(sizes)))
    # Frequencies are derived: no tensor of the target holds them.
    kept = {key: tensor for key, tensor in weights.items() if not key.endswith("inv_freq")}
    same_bytes(back("neox_native", target, tmp_path / "again"), kept)


def test_a_fused_gelu_is_the_tanh_form(tmp_path: Path) -> None:
    config, weights = neox.config(WIDE, fused=True), neox.weights(WIDE, 2)
    target = there("neox_native", saved(weights, config, tmp_path / "source"), tmp_path / "target")
    agree(computed(target, tokens(WIDE)), neox.logits(weights, config, tokens(WIDE)))
    exact = neox.logits(weights, config | {"bias_gelu_fusion": False}, tokens(WIDE))
    assert (computed(target, tokens(WIDE)) - exact).abs().max() > 1e-4


def test_one_norm_for_both_branches_is_another_function(tmp_path: Path) -> None:
    """gpt_j_tied: both norms are stored, and one is read. transformers has no such block."""
    source = saved(neox.weights(WIDE, 2), neox.config(WIDE) | {"gpt_j_tied": True}, tmp_path / "source")
    report = check_map("neox_native", source)
    assert "topology-change-needs-retraining" in {f.name for f in report.findings}


def test_layers_are_counted_from_the_embedding(tmp_path: Path) -> None:
    """sequential.2 is layer 0: numbers that begin elsewhere are named, and none is guessed."""
    weights = {key.replace("sequential.2.", "sequential.1."): t for key, t in neox.weights(WIDE, 2).items()}
    report = check_map("neox_native", saved(weights, neox.config(WIDE), tmp_path / "source"))
    said = {(f.name, key) for f in report.findings for key in f.tensors}
    assert ("map-not-total", "sequential.1.mlp.dense_h_to_4h.weight") in said
    assert ("map-not-total", "gpt_neox.layers.0.mlp.dense_h_to_4h.weight") in said
