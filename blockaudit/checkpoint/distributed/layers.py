"""Layers that Megatron-core has laid into one tensor: each as a tensor of its own, under the layer's number.

Where all layers are of one kind, megatron-core 0.16.1 (transformer/transformer_block.py: sharded_state_dict) saves
`decoder.layers.3.mlp.linear_fc2.weight` as place 3 of the first axis of `decoder.layers.mlp.linear_fc2.weight`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from blockaudit.checkpoint.distributed.metadata import Shape

_STACKED = re.compile(r"((?:[^.]+\.)*?layers\.)(?!\d)(.+)", re.DOTALL)
# Far more layers than any model has, and tensors than a checkpoint: a hostile file may claim any number.
_MOST_LAYERS, _MOST = 4096, 1_000_000


class Layer(msgspec.Struct, frozen=True):
    """One layer's tensor: place `number` of the first axis of the tensor `stacked`, or that tensor where None."""

    stacked: str
    number: int | None
    shape: Shape


def apart(shapes: Mapping[str, Shape]) -> dict[str, Layer]:
    """Every tensor of a model by its layer's own key.

    Stacks that differ in length are left as they are, and so are all where a layer's key is taken by another tensor.
    """
    found = {key: m for key in shapes if (m := _STACKED.fullmatch(key)) is not None}
    lengths: dict[str, set[int]] = {}
    for key, matched in found.items():
        lengths.setdefault(matched[1], set()).add(shapes[key][0] if shapes[key] else 0)
    kept = {k: m for k, m in found.items() if len(of := lengths[m[1]]) == 1 and 0 < min(of) <= _MOST_LAYERS}
    count = len(shapes) + sum(shapes[key][0] - 1 for key in kept)
    named = dict(_named(shapes, kept)) if count <= _MOST else {}
    return named if len(named) == count else dict(_named(shapes, {}))


def _named(shapes: Mapping[str, Shape], kept: Mapping[str, re.Match[str]]) -> Iterator[tuple[str, Layer]]:
    for key, shape in shapes.items():
        if key not in kept:
            yield key, Layer(key, None, shape)
            continue
        head, rest = kept[key].groups()
        for number in range(shape[0]):
            yield f"{head}{number}.{rest}", Layer(key, number, shape[1:])
