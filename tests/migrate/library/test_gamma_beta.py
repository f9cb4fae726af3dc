"""BERT whose norms are gamma and beta, to the names of today and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.migrate.library.layouts import bert
from tests.migrate.library.layouts.sizes import PLAIN, SQUARE, Sizes, tokens
from tests.migrate.library.proving import agree, back, computed, same_bytes, saved, there


@pytest.mark.parametrize("sizes", [PLAIN, SQUARE], ids=["plain", "square"])
@pytest.mark.parametrize("decoder", [True, False], ids=["decoder stored", "decoder left out"])
def test_gamma_and_beta(tmp_path: Path, sizes: Sizes, *, decoder: bool) -> None:
    config, weights = bert.config(sizes), bert.weights(sizes, 7)
    kept = {k: v for k, v in weights.items() if k != "cls.predictions.decoder.weight"}
    source = saved(weights if decoder else kept, config, tmp_path / "source")
    target = there("bert_gamma_beta", source, tmp_path / "target")
    agree(computed(target, tokens(sizes)), bert.logits(weights, config, tokens(sizes)))
    same_bytes(back("bert_gamma_beta", target, tmp_path / "again"), kept)
