"""GPT-NeoX's own library to transformers and back."""

from __future__ import annotations

from pathlib import Path

import pytest

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
