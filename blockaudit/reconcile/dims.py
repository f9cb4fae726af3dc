"""Dimensions solved from tensor shapes: what the headers say that config.json also says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import isfinite

import msgspec

from blockaudit.manifest import grammar
from blockaudit.reconcile import expand
from blockaudit.reconcile.match import heads_of, layers_seen
from blockaudit.records.binding import Binding
from blockaudit.records.bound import BoundManifest
from blockaudit.records.checkpoint import TensorHeader


class Solved(msgspec.Struct, frozen=True):
    """A dimension as the shapes give it, and the tensor that shows it."""

    value: int
    evidence: str


def solve(text: str, symbol: str, size: int, env: Mapping[str, object]) -> int | None:
    """The whole number for `symbol` that makes the linear expression `text` equal `size`; None where there is none."""
    try:
        at = [grammar.evaluate(text, {**env, symbol: x}) for x in (0, 1, 2)]
    except grammar.ExpressionError:
        return None
    if not all(isinstance(v, int | float) and isfinite(v) for v in at):
        return None
    slope = at[1] - at[0]
    if slope == 0 or at[2] - at[1] != slope or (size - at[0]) % slope:
        return None
    value = (size - at[0]) // slope
    # A config may give a factor so small that no whole number is left.
    return int(value) if isfinite(value) and value > 0 else None


def solved(bound: BoundManifest, binding: Binding) -> dict[str, Solved]:
    """Every dimension that some shape gives by itself, the others of its expression being known.

    Where shapes disagree with each other the most common value stands; shape rules name the odd ones.
    """
    votes: dict[str, Counter[int]] = {}
    shown: dict[tuple[str, int], str] = {}
    env = {name: r.value for name, r in bound.dims.items() if r.known}
    for template in binding.templates:
        if template.example is None or template.expected.derived:
            continue
        header = binding.tensors.get(template.example)
        if header is None or len(header.shape) != len(template.expected.symbols):
            continue
        for text, size in zip(template.expected.symbols, header.shape, strict=True):
            names = grammar.symbols(text)
            for name in names:
                if any(n not in env for n in names if n != name):
                    continue
                value = solve(text, name, size, env)
                if value is not None:
                    # A shape that gives a dimension alone outweighs one that gives it only with others' help.
                    votes.setdefault(name, Counter())[value] += template.found * (1000 if len(names) == 1 else 1)
                    shown.setdefault((name, value), f"{template.example} {list(header.shape)}")
    for name, text, size, where in _counted(bound, binding):
        # A shape (the router's) is a better witness of a count than keys, of which some may be lost.
        if text.isidentifier() and name not in votes:
            votes[name] = Counter({size: 1})
            shown[name, size] = where
    return {name: Solved(value, shown[name, value]) for name, c in votes.items() for value in (c.most_common(1)[0][0],)}


def _counted(bound: BoundManifest, binding: Binding) -> Iterable[tuple[str, str, int, str]]:
    """Counts read off key numbers: experts and the like (layers have a contract field of their own)."""
    for axis, text in bound.manifest.axes.items():
        owner = next((t for t in binding.templates if f"{{{axis}}}" in t.expected.template and t.found), None)
        if owner is None:
            continue
        head, _, _ = owner.expected.template.partition(f"{{{axis}}}")
        if owner.example is not None and "{l}" in head and owner.expected.layers:
            layer = expand.layer_of(owner.example, head.partition("{l}")[0])
            head = head.replace("{l}", str(layer))
        numbers = layers_seen([head], binding.tensors)
        if numbers:
            yield text, text, max(numbers) + 1, f"{head}{expand.ranges(sorted(numbers))}"


def observed(bound: BoundManifest, tensors: Mapping[str, TensorHeader]) -> dict[str, int]:
    """Dimensions of a checkpoint without config.json: counts from key numbers, sizes from shapes."""
    found: dict[str, int] = {}
    manifest = bound.manifest
    for stack in manifest.stacks:
        heads = heads_of(bound, stack.name)
        text = getattr(stack.stored_layers or stack.layers, "expr", None)
        seen = layers_seen(heads, tensors) if heads else set[int]()
        if isinstance(text, str) and text.isidentifier() and seen and not stack.ignored:
            found[text] = max(seen) + 1
    for e in bound.expected:
        for axis, _ in e.counts:
            text = manifest.axes[axis]
            head = e.template.partition(f"{{{axis}}}")[0]
            numbers = {n for key in tensors if (n := _number(key, head)) is not None}
            if text.isidentifier() and numbers:
                found[text] = max(found.get(text, 0), max(numbers) + 1)
    for e in bound.expected:
        header = next((tensors[k] for k in _instances(e, tensors)), None)
        if header is None or len(header.shape) != len(e.symbols):
            continue
        for text, size in zip(e.symbols, header.shape, strict=True):
            if text.isidentifier():
                found.setdefault(text, size)
    return found


def _number(key: str, head: str) -> int | None:
    """The number at the axis that follows `head`, whatever the numbers before it."""
    if "{" not in head:
        return expand.layer_of(key, head)
    hit = expand.pattern(head).match(key)
    return expand.layer_of(key, hit.group(0)) if hit else None


def _instances(e: object, tensors: Mapping[str, TensorHeader]) -> Iterable[str]:
    template = getattr(e, "template", "")
    if "{" not in template:
        return [template] if template in tensors else []
    head = template.partition("{")[0]
    wanted = expand.pattern(template)
    return (k for k in tensors if k.startswith(head) and wanted.fullmatch(k))
