"""The registry's names, given only to what they name."""

from __future__ import annotations

from typing import Any

import pytest

from blockaudit.manifest.load import library
from blockaudit.manifest.topology import norms_per_layer, sum_normalised, topology
from blockaudit.manifest.view import View
from tests.manifest import samples


def _topology(*sites: str, **changes: Any) -> str | None:
    norms: dict[str, Any] = {site: {} for site in sites}
    branches: list[dict[str, Any]] = [
        {"name": "self_attention", "kind": "self_attention", "norms": norms},
        {"name": "mlp", "kind": "mlp", "norms": norms},
    ]
    stack = {"name": "decoder", "layers": 2, "branches": branches, **changes.pop("stack", {"final_norm": {}})}
    document = {"schema": "blockaudit/block-manifest/1", "architecture_id": "x", "norm": {"family": "rmsnorm"}}
    manifest = samples.manifest(document | {"stacks": [stack]} | changes)
    return topology(manifest.stacks[0], View(manifest))


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("llama", {}, "Pre-LN"),
        ("bert", {}, "Post-LN"),
        ("gemma2", {}, "Peri-LN"),
        ("gpt_neox", {}, "parallel Pre-LN"),
        ("gpt_neox", {"use_parallel_residual": False}, "Pre-LN"),
        ("gptj", {}, "parallel Pre-LN, one norm read by all"),
        ("granite", {}, "scaled residual"),
        ("opt", {"do_layer_norm_before": False}, "Post-LN"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, None),
        ("olmo2", {}, None),
    ],
)
def test_families(name: str, config: dict[str, Any], said: str | None) -> None:
    manifest = library(name).manifest
    assert topology(manifest.stacks[0], View(manifest, config)) == said


@pytest.mark.parametrize(
    ("sites", "changes", "said"),
    [
        (["norm_in"], {}, "Pre-LN"),
        (["norm_in", "norm_out"], {}, "Peri-LN"),
        # The paper's contract has a final norm.
        (["norm_in", "norm_out"], {"stack": {}}, None),
        (["norm_in", "norm_post"], {}, None),
        (["norm_post"], {"residual": {"shortcut": "constant", "shortcut_scale": 2.0}}, None),
        (["norm_in"], {"residual": {"mlp_branch_scale": 0.5}}, "scaled residual"),
        (["norm_in"], {"residual": {"shortcut": "vector"}}, "scaled residual"),
        (["norm_in"], {"residual": {"shortcut": "gate"}}, None),
        (["norm_in"], {"residual": {"shortcut": None}}, None),
        (["norm_in"], {"residual": {"mlp_branch_scale": None}}, None),
        (["norm_in"], {"residual": {"update": "interpolate_retract"}}, None),
        (["norm_in"], {"stack": {"parallel": None}}, None),
        (["norm_in"], {"stack": {"unplaced": {"n": {}}}}, None),
        (["norm_in"], {"stack": {"branches": []}}, None),
        (["norm_in"], {"norm": {"family": None}}, None),
        ([], {}, None),
    ],
)
def test_a_name_only_where_all_of_it_holds(sites: list[str], changes: dict[str, Any], said: str | None) -> None:
    assert _topology(*sites, **changes) == said


def test_counts() -> None:
    manifest = library("deepseek_v3").manifest
    view = View(manifest, {"q_lora_rank": 1536})
    assert norms_per_layer(manifest.stacks[0], view) == {"dense": 4, "moe": 4}
    assert not sum_normalised(manifest.stacks[0], view)
    bert = library("bert").manifest
    assert sum_normalised(bert.stacks[0], View(bert))
