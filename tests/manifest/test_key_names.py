"""Keys that are not the usual ones: norms with other names than `weight` and `bias`, numbers that config gives."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from blockaudit.manifest.bind import bind
from blockaudit.manifest.check import check_manifest
from blockaudit.manifest.library import templates
from blockaudit.manifest.validate import block_manifest

SITE = {"module": "h.{l}.qkv", "names": {"weight": "layer_norm_weight", "bias": "layer_norm_bias"}}
DOCUMENT: dict[str, Any] = {
    "schema": "blockaudit/block-manifest/1",
    "architecture_id": "named",
    "state_layout": ["batch", "sequence", "model"],
    "norm": {"family": "layernorm", "center": True, "bias": True, "names": {"weight": "scale"}},
    "dims": {"d_model": 8},
    "stacks": [
        {
            "name": "decoder",
            "layers": 2,
            "branches": [{"name": "self_attention", "kind": "causal_self_attention", "norms": {"norm_in": SITE}}],
            "final_norm": {"module": "norm"},
        }
    ],
}
EXPECTED = {"h.{l}.qkv.layer_norm_weight", "h.{l}.qkv.layer_norm_bias", "norm.scale", "norm.bias"}


def test_a_site_names_its_tensors_and_inherits_the_names_of_the_manifest() -> None:
    manifest = block_manifest(json.dumps(DOCUMENT).encode(), "x.json")
    bound = bind(manifest, {})
    assert {e.template for e in bound.expected} == EXPECTED
    assert {e.role for e in bound.expected if "qkv" in e.template} == {"weight", "bias"}
    assert {key for key, _ in templates(manifest)} == EXPECTED


def test_a_dimension_may_stand_in_a_key() -> None:
    document = deepcopy(DOCUMENT)
    document["dims"] |= {"n_layers": {"config": "depth"}, "last": {"expr": "n_layers + 3"}}
    document["stacks"][0] |= {"layers": {"expr": "n_layers"}, "final_norm": {"module": "h.{last}.norm"}}
    manifest = block_manifest(json.dumps(document).encode(), "x.json")
    assert not [said for said in check_manifest(manifest) if "axis" in said]
    assert "h.7.norm.scale" in {e.template for e in bind(manifest, {"depth": 4}).expected}
    # Without a config nobody knows the number, and the key is not guessed.
    assert "h.{last}.norm.scale" in {e.template for e in bind(manifest, None).expected}
