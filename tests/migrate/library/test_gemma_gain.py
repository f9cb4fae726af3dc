"""Gains stored as they multiply, to Gemma's 1 + weight and back; how exact that is, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.migrate.library.layouts import gemma
from tests.migrate.library.layouts.sizes import PLAIN, SQUARE, Sizes, tokens
from tests.migrate.library.proving import agree, back, computed, same_bytes, saved, stored, there


@pytest.mark.parametrize("sizes", [PLAIN, SQUARE], ids=["plain", "square"])
@pytest.mark.parametrize(("map_", "dtype"), [("gemma_gain", torch.bfloat16), ("gemma_gain_f32", torch.float32)])
def test_gains(tmp_path: Path, map_: str, dtype: torch.dtype, sizes: Sizes) -> None:
    config, weights = gemma.config(sizes), gemma.weights(sizes, 9, dtype)
    target = there(map_, saved(weights, config, tmp_path / "source"), tmp_path / "target")
    agree(computed(target, tokens(sizes)), gemma.logits(weights, config, tokens(sizes)))
    same_bytes(back(map_, target, tmp_path / "again"), weights)


def test_small_gains_of_bf16_come_back_bit_by_bit(tmp_path: Path) -> None:
    """Below 0.5, gain - 1 has no BF16 of its own: 0.3 is 0.30078125 there, and the difference -0.69921875 in F32."""
    config, weights = gemma.config(PLAIN), gemma.weights(PLAIN, 9)
    key = "model.norm.weight"
    weights[key] = torch.linspace(2.0**-17, 0.499, PLAIN.d_model).to(torch.bfloat16)
    weights[key][0] = 0.3
    target = there("gemma_gain", saved(weights, config, tmp_path / "source"), tmp_path / "target")
    found = stored(target)[key]
    assert found.dtype == torch.float32
    assert found[0].item() == -0.69921875
    assert torch.equal(found.double() + 1, weights[key].double())
    assert not torch.equal((weights[key] - 1) + 1, weights[key])  # without the cast bits are lost
    same_bytes(back("gemma_gain", target, tmp_path / "again"), weights)
