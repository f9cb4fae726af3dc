from __future__ import annotations

from typing import Any

import pytest

from blockaudit.manifest.equation import Derived, around, derived, equations
from blockaudit.manifest.load import library
from blockaudit.manifest.show import describe, summary
from blockaudit.manifest.view import View
from tests.manifest import samples


def _manifest(**changes: Any) -> Any:
    """Two branches with a norm before each."""
    branches = [
        {"name": "self_attention", "kind": "causal_self_attention", "norms": {"norm_in": {}}},
        {"name": "mlp", "kind": "mlp", "norms": {"norm_in": {}}},
    ]
    stack = {"name": "decoder", "layers": 2, "branches": branches, **changes.pop("stack", {})}
    document = {"schema": "blockaudit/block-manifest/1", "architecture_id": "x", "norm": {"family": "rmsnorm"}}
    return samples.manifest(document | {"stacks": [stack]} | changes)


def _lines(manifest: Any) -> list[str]:
    return equations(manifest.stacks[0], View(manifest))[""]


def _branches(*sites: str, **more: Any) -> list[dict[str, Any]]:
    norms = {site: {} for site in sites}
    return [
        {"name": "self_attention", "kind": "self_attention", "norms": norms, **more},
        {"name": "mlp", "kind": "mlp", "norms": norms, **more},
    ]


@pytest.mark.parametrize(
    ("sites", "lines"),
    [
        (["norm_in"], ["h = x + self_attention(rmsnorm(x))", "y = h + mlp(rmsnorm(h))"]),
        (["norm_post"], ["h = rmsnorm(x + self_attention(x))", "y = rmsnorm(h + mlp(h))"]),
        (["norm_out"], ["h = x + rmsnorm(self_attention(x))", "y = h + rmsnorm(mlp(h))"]),
        (["norm_in", "norm_out"], ["h = x + rmsnorm(self_attention(rmsnorm(x)))", "y = h + rmsnorm(mlp(rmsnorm(h)))"]),
        ([], ["h = x + self_attention(x)", "y = h + mlp(h)"]),
    ],
)
def test_where_the_norm_stands(sites: list[str], lines: list[str]) -> None:
    assert _lines(_manifest(stack={"branches": _branches(*sites)})) == lines


def test_branches_beside_each_other() -> None:
    assert _lines(_manifest(stack={"parallel": True})) == ["y = x + self_attention(rmsnorm(x)) + mlp(rmsnorm(x))"]
    shared = _branches("norm_in")
    shared[1] = {"name": "mlp", "kind": "mlp", "reads": "self_attention.norm_in"}
    assert _lines(_manifest(stack={"parallel": True, "branches": shared})) == [
        "n = rmsnorm(x)",
        "y = x + self_attention(n) + mlp(n)",
    ]


@pytest.mark.parametrize(
    ("residual", "first"),
    [
        ({"attention_branch_scale": 0.22}, "h = x + 0.22 * self_attention(rmsnorm(x))"),
        ({"shortcut": "constant", "shortcut_scale": 2}, "h = 2 * x + self_attention(rmsnorm(x))"),
        ({"attention_branch_scale": {"config": "m", "default": 1.0}}, "h = x + m * self_attention(rmsnorm(x))"),
        ({"attention_branch_scale": {"config": "m", "pinned": 0.5}}, "h = x + 0.5 * self_attention(rmsnorm(x))"),
        ({"attention_branch_scale": {"value": 1.0, "learned": True}}, "h = x + alpha * self_attention(rmsnorm(x))"),
        ({"shortcut": "gate"}, "h = gate(x) * x + self_attention(rmsnorm(x))"),
        ({"shortcut": "projection"}, "h = projection(x) + self_attention(rmsnorm(x))"),
        ({"shortcut": "vector"}, "h = s * x + self_attention(rmsnorm(x))"),
        (
            {"update": "interpolate_retract", "attention_branch_scale": {"value": 0.05, "learned": True}},
            "h = retract(x + alpha * (self_attention(rmsnorm(x)) - x))",
        ),
    ],
)  # fmt: skip
def test_the_residual_equation(residual: dict[str, Any], first: str) -> None:
    assert _lines(_manifest(residual=residual))[0] == first


def test_the_normalised_state_may_be_carried() -> None:
    manifest = _manifest(residual={"shortcut_source": "normalised_state"})
    assert _lines(manifest)[:2] == ["n = rmsnorm(x)", "h = n + self_attention(n)"]
    assert derived(manifest.stacks[0], View(manifest)) == Derived(True, False, False)


def test_a_stack_that_nothing_is_claimed_of_has_no_equation() -> None:
    manifest = _manifest(stack={"branches": []})
    assert _lines(manifest) == []
    assert summary(manifest) == ""


@pytest.mark.parametrize(
    ("name", "lines", "columns"),
    [
        ("llama", ["h = x + self_attention(rmsnorm(x))", "y = h + mlp(rmsnorm(h))"], Derived(False, False, True)),
        ("bert", ["h = layernorm(x + self_attention(x))", "y = layernorm(h + mlp(h))"], Derived(True, False, False)),
        (
            "gemma2", ["h = x + rmsnorm(self_attention(rmsnorm(x)))", "y = h + rmsnorm(mlp(rmsnorm(h)))"],
            Derived(False, True, True),
        ),
        ("olmo2", ["h = x + rmsnorm(self_attention(x))", "y = h + rmsnorm(mlp(h))"], Derived(False, True, True)),
        ("gptj", ["n = layernorm(x)", "y = x + self_attention(n) + mlp(n)"], Derived(False, False, True)),
        ("gpt_neox", ["y = x + self_attention(layernorm(x)) + mlp(layernorm(x))"], Derived(False, False, True)),
    ],
)  # fmt: skip
def test_families(name: str, lines: list[str], columns: Derived) -> None:
    manifest = library(name).manifest
    assert _lines(manifest) == lines
    assert derived(manifest.stacks[0], View(manifest)) == columns


def test_what_stands_around_the_layers() -> None:
    gemma = library("gemma2").manifest
    assert around(gemma.stacks[0], View(gemma)) == [
        "x = sqrt(d_model) * embedding(tokens)", "z = rmsnorm(y)", "logits = 30 * tanh(head(z) / 30)",
    ]  # fmt: skip
    granite = library("granite").manifest
    assert "logits = (1 / logits_scaling) * head(z)" in around(granite.stacks[0], View(granite))


def test_kinds_of_layers_that_differ_are_shown_apart() -> None:
    stack = {
        "layer_kinds": {"even": "l % 2 == 0", "odd": "l % 2 == 1"},
        "branches": [*_branches("norm_in", layer_kinds=["even"]), *_branches("norm_post", layer_kinds=["odd"])],
    }
    manifest = _manifest(stack=stack)
    assert set(equations(manifest.stacks[0], View(manifest))) == {"even", "odd"}


def test_the_description_has_every_site_key_and_tie() -> None:
    found = describe(samples.manifest(samples.EVERYTHING))
    assert "decoder.self_attention.norm_in" in {n["site"] for n in found["norms"]}
    assert {
        "key": "lm_head.weight",
        "tied_to": "model.embed_tokens.weight",
        "when": "tie_word_embeddings (default false)",
    } in found["ties"]
    assert found["dims"]["d_model"] == "hidden_size (64)"
