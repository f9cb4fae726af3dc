"""Expand key templates over their axes: strings joined, never patterns matched key by key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from blockaudit.records.bound import ExpectedTensor
from blockaudit.records.layers import ranges as ranges

AXIS = re.compile(r"\{(\w+)\}")


def axes(expected: ExpectedTensor) -> dict[str, Sequence[int]]:
    """The numbers that each axis of the template runs over, in order of appearance."""
    counts = dict(expected.counts)
    return {
        name: expected.layers if name == "l" else range(counts.get(name, 0)) for name in AXIS.findall(expected.template)
    }


def keys(expected: ExpectedTensor) -> list[str]:
    """Every key of the template, first axis slowest."""
    pieces = AXIS.split(expected.template)
    found = [pieces[0]]
    for numbers, tail in zip(axes(expected).values(), pieces[2::2], strict=True):
        ends = [f"{n}{tail}" for n in numbers]
        found = [head + end for head in found for end in ends]
    return found


def size(expected: ExpectedTensor) -> int:
    """How many keys the template expands to."""
    total = 1
    for numbers in axes(expected).values():
        total *= len(numbers)
    return total


def before_layer(template: str) -> str | None:
    """The text before `{l}`, where the template has a layer axis."""
    head, mark, _ = template.partition("{l}")
    return head if mark else None


def layer_of(key: str, head: str) -> int | None:
    """The layer number that follows `head` in `key`."""
    if not key.startswith(head):
        return None
    number, _, _ = key[len(head) :].partition(".")
    return int(number) if number.isdecimal() and len(number) < 10 else None


def pattern(template: str) -> re.Pattern[str]:
    """The template as a pattern with one group per axis (for reports and drafts, not for matching)."""
    parts = AXIS.split(template)
    text = "".join(re.escape(p) if i % 2 == 0 else r"(\d+)" for i, p in enumerate(parts))
    return re.compile(text)


def templates_of(names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Keys grouped by their spelling with numbers replaced (`model.layers.{n}.mlp.up_proj.weight`)."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(re.sub(r"(?<=\.)\d+(?=\.|$)", "{n}", name), []).append(name)
    yield from groups.items()
