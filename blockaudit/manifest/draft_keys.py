"""Group the keys of a checkpoint into templates by the numbers in them; nothing else is read into a name.

A number counts something where the keys up to it hold 0, 1, ... without a hole. The longest such list that stands in no
other is the layers, axis `{l}`; a list inside the layers is `{e}`, then `{i}`, `{j}`, ... A template is made only where
the keys are the whole product of its axes (of the layers it may miss some, and then says which): all other
numbers stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

MAX_LAYERS = 65_536
_AXES = "eijkmnopqrstuvwxyz"
# Longest `when`, as an expression may be.
_LONGEST = 400

Split = tuple[tuple[str, ...], tuple[int, ...]]  # words with `#` for numbers, and the numbers


@dataclass(frozen=True, slots=True)
class Template:
    """Keys of one pattern and one shape. `when` says in which layers, None: in all of them (or in none)."""

    text: str
    shape: tuple[int, ...]
    when: str | None = None

    @property
    def in_layers(self) -> bool:
        return "{l}" in self.text


@dataclass(frozen=True, slots=True)
class Keys:
    """All keys of a checkpoint as templates. `layers` lists the layer numbers, `axes` counts every other axis."""

    templates: tuple[Template, ...]
    layers: range
    layer_list: str | None
    axes: dict[str, int]
    rivals: tuple[str, ...]


def group(shapes: Mapping[str, tuple[int, ...]]) -> Keys:
    """Templates of `shapes` (key -> shape)."""
    split = {key: _split(key) for key in shapes}
    lists = _lists(split.values())
    layer_list, rivals = _layer_list(lists, split.values())
    layers = range(min(lists[layer_list]), max(lists[layer_list]) + 1) if layer_list else range(0)
    axes = _Axes(lists, layer_list, layers)
    groups: dict[tuple[Any, ...], list[str]] = {}
    for key, shape in shapes.items():
        groups.setdefault((split[key][0], shape), []).append(key)
    templates = [t for (_, shape), keys in groups.items() for t in axes.templates(keys, split, shape)]
    templates.sort(key=lambda t: (t.text, t.when or ""))
    used = {name: n for name, n in axes.counts.items() if any(f"{{{name}}}" in t.text for t in templates)}
    return Keys(tuple(templates), layers, _name(layer_list), used, tuple(filter(None, map(_name, rivals))))


def _split(key: str) -> Split:
    words, numbers = list[str](), list[int]()
    for word in key.split("."):
        number = word.isascii() and word.isdigit() and len(word) < 7 and str(int(word)) == word
        words.append("#" if number else word)
        if number:
            numbers.append(int(word))
    return tuple(words), tuple(numbers)


def _prefixes(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The list that each number of a key stands in: the words up to and with it."""
    return [words[: i + 1] for i, word in enumerate(words) if word == "#"]


def _lists(keys: Iterable[Split]) -> dict[tuple[str, ...], set[int]]:
    found: dict[tuple[str, ...], set[int]] = {}
    for words, numbers in keys:
        for prefix, number in zip(_prefixes(words), numbers, strict=True):
            found.setdefault(prefix, set()).add(number)
    return found


def _layer_list(
    lists: dict[tuple[str, ...], set[int]], keys: Iterable[Split]
) -> tuple[tuple[str, ...] | None, list[tuple[str, ...]]]:
    """The longest list that stands in no other; of several that long the one with most tensors, then the first."""
    weight: dict[tuple[str, ...], int] = {}
    for words, _ in keys:
        for prefix in _prefixes(words)[:1]:
            weight[prefix] = weight.get(prefix, 0) + 1
    outer = [p for p in lists if p.count("#") == 1 and max(lists[p]) < MAX_LAYERS]
    if not outer:
        return None, []
    order = sorted(outer, key=lambda p: (-len(lists[p]), -weight[p], p))
    rivals = [p for p in order[1:] if len(lists[p]) == len(lists[order[0]]) and len(lists[p]) > 1]
    return order[0], rivals


def _name(prefix: tuple[str, ...] | None) -> str | None:
    return None if prefix is None else ".".join(prefix[:-1])


class _Axes:
    """Which lists are axes, and by what letter."""

    def __init__(
        self, lists: dict[tuple[str, ...], set[int]], layer_list: tuple[str, ...] | None, layers: range
    ) -> None:
        self.layer_list, self.layers = layer_list, layers
        self.counts: dict[str, int] = {}
        self._letter: dict[tuple[str, ...], str] = {}
        for prefix in sorted(lists):
            full = lists[prefix] == set(range(len(lists[prefix]))) and len(lists[prefix]) > 1
            if prefix != layer_list and full and len(lists[prefix]) <= MAX_LAYERS:
                self._assign(prefix, len(lists[prefix]))

    def _assign(self, prefix: tuple[str, ...], count: int) -> None:
        """Lists of one length share a letter where no key has both."""
        for letter in _AXES:
            nested = any(p == prefix[: len(p)] and ln == letter for p, ln in self._letter.items())
            if not nested and self.counts.get(letter, count) == count:
                self.counts[letter] = count
                self._letter[prefix] = letter
                return

    def templates(self, keys: list[str], split: Mapping[str, Split], shape: tuple[int, ...]) -> list[Template]:
        """The templates of keys that have the same words and one shape."""
        words = split[keys[0]][0]
        prefixes = _prefixes(words)
        literal = self._literal(prefixes, [split[key][1] for key in keys])
        parts: dict[tuple[int, ...], list[str]] = {}
        for key in keys:
            fixed = tuple(n for n, stays in zip(split[key][1], literal, strict=True) if stays)
            parts.setdefault(fixed, []).append(key)
        found: list[Template] = []
        for part in parts.values():
            whole = self._whole(prefixes, {key: split[key][1] for key in part})
            text = self._text(words, prefixes, literal, split[part[0]][1])
            when = _condition(sorted(whole), self.layers)
            if when is not None and len(when) > _LONGEST:
                whole = {}
            if whole:
                found.append(Template(text, shape, when))
            claimed = {key for keys in whole.values() for key in keys}
            found += [Template(key, shape) for key in part if key not in claimed]
        return found

    def _whole(self, prefixes: list[tuple[str, ...]], numbers: dict[str, tuple[int, ...]]) -> dict[int, list[str]]:
        """Of these keys, by layer, those of layers that hold the whole product of the other numbers."""
        at = prefixes.index(self.layer_list) if self.layer_list in prefixes else None
        size = prod(len({n[i] for n in numbers.values()}) for i in range(len(prefixes)) if i != at)
        by_layer: dict[int, list[str]] = {}
        for key, number in numbers.items():
            by_layer.setdefault(-1 if at is None else number[at], []).append(key)
        return {layer: keys for layer, keys in by_layer.items() if len(keys) == size}

    def _literal(self, prefixes: list[tuple[str, ...]], numbers: list[tuple[int, ...]]) -> list[bool]:
        """Which numbers stay numbers: those of no axis, and those of which these keys have only some."""
        fixed: list[bool] = []
        for i, prefix in enumerate(prefixes):
            letter = self._letter.get(prefix)
            some = letter is None or len({n[i] for n in numbers}) < self.counts[letter]
            fixed.append(some and prefix != self.layer_list)
        return fixed

    def _text(
        self, words: tuple[str, ...], prefixes: list[tuple[str, ...]], literal: list[bool], numbers: tuple[int, ...]
    ) -> str:
        at = iter(zip(prefixes, literal, numbers, strict=True))
        out: list[str] = []
        for word in words:
            if word == "#":
                prefix, fixed, number = next(at)
                word = str(number) if fixed else f"{{{'l' if prefix == self.layer_list else self._letter[prefix]}}}"
            out.append(word)
        return ".".join(out)


def _condition(mine: list[int], layers: range) -> str | None:
    """What tells these layers from the others; None where they are all, or where keys stand in no layer."""
    if not mine or mine[0] < 0 or len(mine) == len(layers):
        return None
    if mine == list(range(mine[0], mine[-1] + 1)):
        low, high = f"l >= {mine[0]}", f"l < {mine[-1] + 1}"
        if mine[0] == layers.start:
            return high
        return low if mine[-1] == layers[-1] else f"{low} and {high}"
    steps = {b - a for a, b in pairwise(mine)}
    if len(steps) == 1 and len(mine) > 2:
        step = steps.pop()
        every = [n for n in layers if n % step == mine[0] % step]
        if every == mine:
            return f"l % {step} == {mine[0] % step}"
    return f"l in [{', '.join(map(str, mine))}]"
