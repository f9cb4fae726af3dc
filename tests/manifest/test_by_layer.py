"""What a manifest says of each layer, asked of all layers at once and of one by one."""

from __future__ import annotations

from typing import Any

import pytest

from blockaudit.manifest.load import library
from blockaudit.manifest.values import Layered, Resolver

LAYERS = range(6)
SPARSE = "l not in mlp_only and n_experts > 0 and (l + 1) % sparse_step == 0"
WINDOW = "layer_types[l] == 'sliding_attention' if layer_types else l % 2 == 0"


def _resolver(family: str, config: dict[str, Any] | None) -> Resolver:
    return Resolver(library(family).manifest.dims, config, pins=True)


@pytest.mark.parametrize(
    ("family", "text", "config"),
    [
        ("qwen3_moe", SPARSE, {}),
        ("qwen3_moe", SPARSE, None),
        ("qwen3_moe", SPARSE, {"mlp_only_layers": [1, 3], "decoder_sparse_step": 2}),
        ("qwen3_moe", SPARSE, {"mlp_only_layers": 3}),
        ("gemma2", WINDOW, {}),
        ("gemma2", WINDOW, {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
        ("gemma2", "l < no_such_symbol", {}),
    ],
)
def test_all_layers_at_once_are_what_each_is_by_itself(family: str, text: str, config: dict[str, Any] | None) -> None:
    together, alone = _resolver(family, config), _resolver(family, config)
    assert together.by_layer(text, LAYERS) == {n: alone.expression(text, l=n) for n in LAYERS}
    assert together.problems == alone.problems


def test_what_fails_in_every_layer_is_one_problem() -> None:
    asked = _resolver("qwen3_moe", {"decoder_sparse_step": "two"})
    said = asked.by_layer(SPARSE, LAYERS)
    assert [r.known for r in said.values()] == [False] * len(LAYERS)
    assert [p.rule for p in asked.problems] == ["config-invalid"]
    assert "arithmetic on 1 and 'two'" in asked.problems[0].message


def test_what_one_class_has_worked_out_another_reads_and_hears_of_the_same_problem() -> None:
    layered: Layered = {}
    dims = library("qwen3_moe").manifest.dims
    said = [Resolver(dims, {"decoder_sparse_step": "two"}, pins=True, layered=layered) for _ in range(2)]
    first, second = ((r.by_layer(SPARSE, LAYERS), r.problems, r.consumed) for r in said)
    assert first == second
    assert list(layered) == [(SPARSE, LAYERS)]
