"""Layers that Megatron-core has laid into one tensor, by the layer's own key."""

from __future__ import annotations

from blockaudit.checkpoint.distributed.layers import Layer, apart

FC1, NORM = "decoder.layers.mlp.linear_fc1.weight", "decoder.layers.mlp.linear_fc1.layer_norm_weight"


def test_each_layer_has_a_key_of_its_own() -> None:
    found = apart({FC1: (3, 8, 4), NORM: (3, 4), "decoder.final_layernorm.weight": (4,)})
    assert found == {
        **{f"decoder.layers.{n}.mlp.linear_fc1.weight": Layer(FC1, n, (8, 4)) for n in range(3)},
        **{f"decoder.layers.{n}.mlp.linear_fc1.layer_norm_weight": Layer(NORM, n, (4,)) for n in range(3)},
        "decoder.final_layernorm.weight": Layer("decoder.final_layernorm.weight", None, (4,)),
    }


def test_two_stacks_may_differ_in_length() -> None:
    found = apart({"encoder.layers.norm.weight": (2, 4), "decoder.layers.norm.weight": (3, 4)})
    assert list(found) == [
        f"{s}coder.layers.{n}.norm.weight" for s, count in (("en", 2), ("de", 3)) for n in range(count)
    ]


def kept(shapes: dict[str, tuple[int, ...]]) -> bool:
    return apart(shapes) == {key: Layer(key, None, shape) for key, shape in shapes.items()}


def test_what_is_left_as_it_is() -> None:
    assert kept({"decoder.layers.0.mlp.linear_fc1.weight": (8, 4)})  # has a number
    assert kept({FC1: (3, 8, 4), NORM: (2, 4)})  # of how many layers?
    assert kept({FC1: (3, 8, 4), NORM: ()})
    assert kept({FC1: (0, 8, 4)})
    assert kept({FC1: (1 << 40, 8, 4)})  # of no model
    assert kept({FC1: (3, 8, 4), "decoder.layers.1.mlp.linear_fc1.weight": (8, 4)})  # two of one name
    assert kept({"layernorm.layers": (3,), "my_layers.mlp": (3,)})
