"""Keys of all samples as templates: the layer axis, other axes, the shape of each, and in which layers it is there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from blockaudit.graph.drafting.samples import Sample

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


class Unfit(Exception):
    """What was found fits no manifest; the message says what."""


@dataclass
class Template:
    """A key template over all samples. `layers[i]` is where sample i has it (`{0}` for one outside the layers).

    `shapes[i]` is None where sample i has none; `counts` gives each other axis its size in each sample.
    """

    text: str
    stack: str | None
    layers: list[frozenset[int]] = field(default_factory=list[frozenset[int]])
    shapes: list[tuple[int, ...] | None] = field(default_factory=list["tuple[int, ...] | None"])
    counts: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    example: str = ""  # a key of it in the first sample that has one


def layer_number(key: str) -> tuple[str, int, str] | None:
    """(what stands before the first number of a key, the number, what follows)."""
    hit = _NUMBER.search(key)
    return None if hit is None else (key[: hit.start()], int(hit[0]), key[hit.end() :])


def templates(samples: Sequence[Sample], prefixes: dict[str, str]) -> list[Template]:
    """Templates of every key of every sample. `prefixes`: what stands before a layer number -> the stack.

    Raises Unfit.
    """
    literal = _fixed(samples, prefixes)
    found: dict[str, Template] = {}
    instances: dict[str, list[list[tuple[int, tuple[int, ...], tuple[int, ...], str]]]] = {}
    for place, one in enumerate(samples):
        for key, shape in one.keys.items():
            stack, layer, rest = _split(key, prefixes)
            text, numbers = _folded(rest, literal)
            if stack is not None:
                split = layer_number(key)
                assert split is not None
                text = f"{split[0]}{{l}}{text}"
            found.setdefault(text, Template(text, stack))
            instances.setdefault(text, [[] for _ in samples])[place].append((layer, numbers, shape, key))
    for text, per_sample in instances.items():
        _fill(found[text], per_sample)
    return list(found.values())


def _split(key: str, prefixes: dict[str, str]) -> tuple[str | None, int, str]:
    split = layer_number(key)
    if split is not None and split[0] in prefixes:
        return prefixes[split[0]], split[1], split[2]
    return None, 0, key


def _fixed(samples: Sequence[Sample], prefixes: dict[str, str]) -> frozenset[str]:
    """Number places that no sample counts: `layer.0`, `layer.1` of T5 are names, and so are steps of a Sequential."""
    seen: dict[str, list[set[int]]] = {}
    for place, one in enumerate(samples):
        for key in one.keys:
            _, _, rest = _split(key, prefixes)
            for mark, number in _marks(rest):
                seen.setdefault(mark, [set() for _ in samples])[place].add(number)
    return frozenset(m for m, sets in seen.items() if len({frozenset(s) for s in sets if s}) == 1)


def _marks(rest: str) -> Iterable[tuple[str, int]]:
    """Each number place of a key, by what stands before it with numbers left out."""
    for hit in _NUMBER.finditer(rest):
        yield _NUMBER.sub("#", rest[: hit.start()]), int(hit[0])


def _folded(rest: str, literal: frozenset[str]) -> tuple[str, tuple[int, ...]]:
    text, at, numbers = "", 0, list[int]()
    for hit in _NUMBER.finditer(rest):
        mark = _NUMBER.sub("#", rest[: hit.start()])
        if mark in literal:
            continue
        text += rest[at : hit.start()] + "{" + f"#{len(numbers)}" + "}"
        numbers.append(int(hit[0]))
        at = hit.end()
    return text + rest[at:], tuple(numbers)


def _fill(template: Template, per_sample: list[list[tuple[int, tuple[int, ...], tuple[int, ...], str]]]) -> None:
    for found in per_sample:
        template.layers.append(frozenset(layer for layer, *_ in found))
        shapes = {shape for _, _, shape, _ in found}
        if len(shapes) > 1:
            raise Unfit(f"{template.text} has a shape of its own in some layers: {sorted(shapes)[:3]}")
        template.shapes.append(next(iter(shapes), None))
        if found and not template.example:
            template.example = found[0][3]
        axes = len(found[0][1]) if found else template.text.count("{#")
        for axis in range(axes):
            have = {numbers[axis] for _, numbers, _, _ in found}
            if have and have != set(range(len(have))):
                raise Unfit(f"{template.text} counts {sorted(have)[:5]}")
            template.counts.setdefault(f"#{axis}", []).append(len(have))
        counts = [len({n[a] for _, n, _, _ in found}) for a in range(axes)]
        if axes and len(found) != len(template.layers[-1]) * prod(counts):
            raise Unfit(f"{template.text} is not there for every number of its axes")
