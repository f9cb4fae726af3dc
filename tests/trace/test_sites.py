from __future__ import annotations

import random

import pytest

from blockaudit.records.conformance import BRANCH_SITES
from blockaudit.records.sites import Site, order, ordered, parse


def _stack(prefix: str) -> list[str]:
    branches = ("self_attention", "cross_attention", "mlp")
    layers = [
        f"{prefix}layers.{layer}.{name}"
        for layer in (0, 2, 10)
        for name in (*(f"{b}.{s}" for b in branches for s in BRANCH_SITES), "state")
    ]
    return [f"{prefix}embed", f"{prefix}embed_norm", *layers, f"{prefix}final_norm"]


ONE = [*_stack(""), "logits"]
TWO = ["embed", *_stack("encoder."), *_stack("decoder."), "logits"]


@pytest.mark.parametrize("names", [ONE, TWO], ids=["one stack", "two stacks"])
def test_sites_are_ordered_as_they_are_executed(names: list[str]) -> None:
    shuffled = random.Random(0).sample(names, len(names))
    assert ordered(shuffled) == names


@pytest.mark.parametrize("name", sorted({*ONE, *TWO, "decoder.logits"}))
def test_a_name_is_its_parts(name: str) -> None:
    site = parse(name)
    assert site is not None
    assert site.name == name


def test_the_parts_of_a_name() -> None:
    assert parse("decoder.layers.3.mlp.norm_in") == Site("norm_in", "decoder", 3, "mlp")
    assert parse("layers.12.state") == Site("state", "", 12)
    assert parse("logits") == Site("logits")


def test_branches_may_come_in_another_order() -> None:
    names = ["layers.0.mlp.sum", "layers.0.self_attention.norm_in", "layers.0.state", "layers.0.mamba.norm_in"]
    assert ordered(names, ("mlp", "mamba", "self_attention")) == [names[0], names[3], names[1], names[2]]
    # What no order names comes after what it names, and before the layer's own state.
    assert ordered(names) == [names[1], names[0], names[3], names[2]]


@pytest.mark.parametrize(
    "name",
    [
        "", "state", "layers", "layers.0", "layers.0.norm_in", "layers.00.state", "layers.-1.state", "layers.x.state",
        "layers.0.mlp", "layers.0.mlp.weight", "layers.0.mlp.experts.state", "embed.state", "model.layers.0.state",
        "vision.embed", "layers.0.state ", "layers.0.state\n", "layers.0.logits", "decoder.", "encoder.decoder.embed",
        "layers.1234567.state",
    ],
)  # fmt: skip
def test_other_names_are_none(name: str) -> None:
    assert parse(name) is None
    with pytest.raises(ValueError, match="no trace site"):
        order(name)
