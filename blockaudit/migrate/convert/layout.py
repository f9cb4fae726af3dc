"""What the target's files hold, decided before a byte of them is written: names, headers, offsets and the index.

Tensors lie in the order in which the source has what they are made of, so that both are gone through from front to
back. The header is the safetensors format's (README of huggingface/safetensors, "Format"): eight bytes of length, JSON,
spaces up to a multiple of eight; no hole between tensors, and each at a multiple of its element's size, which the wider
dtypes' going first gives. Where the first tensor is a copy, more spaces put it as far into a block of the disk as the
source has it: the kernel then copies whole pages, and a file system with reflinks shares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import msgspec

from blockaudit.errors import RequestError
from blockaudit.records.checkpoint import DTYPE_BITS
from blockaudit.records.migration import Filled, Plan, Step, TensorType

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
Unit = Step | Filled
# Bytes of a block, and of a page.
_BLOCK = 4096
# What sorts source keys as they lie.
PlaceOf = Callable[[str], tuple[int, int]]


class Placed(msgspec.Struct, frozen=True):
    """One target tensor: the bytes `start` to `stop` of its file, counted from the file's beginning."""

    key: str
    type: TensorType
    start: int
    stop: int


class Work(msgspec.Struct, frozen=True):
    """Outputs of one unit that stand side by side in one file. `unit` counts the plan's steps, then what it fills."""

    unit: int
    outputs: tuple[Placed, ...]


class TargetFile(msgspec.Struct, frozen=True):
    """One file: its name, the bytes before the first tensor, what fills the rest in order, and its size in bytes."""

    name: str
    head: bytes
    works: tuple[Work, ...]
    size: int


# One output before it has a place.
_Output = tuple[str, TensorType]
_Group = tuple[int, tuple[_Output, ...]]


def units_of(plan: Plan) -> tuple[Unit, ...]:
    """What a plan does, by the number that `Work.unit` gives."""
    return (*plan.steps, *plan.filled)


def nbytes(type_: TensorType) -> int:
    """Bytes of a tensor of this type. Raises RequestError for a dtype that safetensors does not name."""
    bits = DTYPE_BITS.get(type_.dtype)
    if bits is None or prod(type_.shape) * bits % 8:
        raise RequestError(f"{type_.dtype} {list(type_.shape)} is no type that a safetensors file can hold")
    return prod(type_.shape) * bits // 8


def lay_out(plan: Plan, place: PlaceOf, most: int) -> tuple[TargetFile, ...]:
    """The files of the target, each with at most `most` bytes of tensors, or with one tensor that has more."""
    shards = list(_shards(_ordered(plan, place), most)) or [[]]
    names = [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    names = [SINGLE] if len(shards) == 1 else names
    return tuple(
        _file(name, groups, lambda group: _within_block(plan, group, place))
        for name, groups in zip(names, shards, strict=True)
    )


def index_of(files: Sequence[TargetFile]) -> bytes | None:
    """The shard index, None for one file alone. `total_size` counts the bytes of tensors."""
    if len(files) == 1:
        return None
    placed = {p.key: f.name for f in files for w in f.works for p in w.outputs}
    total = sum(p.stop - p.start for f in files for w in f.works for p in w.outputs)
    document = {"metadata": {"total_size": total}, "weight_map": dict(sorted(placed.items()))}
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _ordered(plan: Plan, place: PlaceOf) -> list[_Group]:
    """Every unit with its outputs, by where the first of its sources lies; what nothing feeds comes last."""
    found: list[tuple[tuple[int, int], _Group]] = []
    last = (1 << 62, 0)
    for number, unit in enumerate(units_of(plan)):
        if isinstance(unit, Filled):
            found.append((last, (number, ((unit.key, unit.type),))))
        else:
            outputs = tuple((key, unit.out_types[key]) for key in unit.outputs)
            found.append((min((place(key) for key in unit.inputs), default=last), (number, outputs)))
    return [group for _, group in sorted(found, key=lambda one: one[0])]


def _shards(groups: Sequence[_Group], most: int) -> Iterator[list[_Group]]:
    """Groups by file. A unit whose outputs fit into no file together is cut between outputs."""
    held: list[_Group] = []
    room = most
    for group in groups:
        for part in _fitting(group, most):
            size = sum(nbytes(t) for _, t in part[1])
            if held and size > room:
                yield held
                held, room = [], most
            held.append(part)
            room -= size
    if held:
        yield held


def _fitting(group: _Group, most: int) -> Iterator[_Group]:
    """The group whole where a file holds it, else output by output."""
    if sum(nbytes(t) for _, t in group[1]) <= most:
        yield group
    else:
        yield from ((group[0], (output,)) for output in group[1])


def _within_block(plan: Plan, group: _Group, place: PlaceOf) -> int | None:
    """How far into a block the source of a copy begins; None for what is no copy, or lies at no multiple of 8."""
    unit = units_of(plan)[group[0]]
    if isinstance(unit, Filled) or not unit.copies:
        return None
    _, offset = place(unit.inputs[unit.outputs.index(group[1][0][0])])
    return None if offset % 8 else offset % _BLOCK


def _file(name: str, groups: list[_Group], within: Callable[[_Group], int | None]) -> TargetFile:
    groups = groups if _aligned(groups) else _by_width(groups)
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for key, type_ in (output for _, outputs in groups for output in outputs):
        entries[key] = {"dtype": type_.dtype, "shape": type_.shape, "data_offsets": (at, at := at + nbytes(type_))}
    text = msgspec.json.encode(entries)
    wanted = within(groups[0]) if groups else None
    text += b" " * (-len(text) % 8 if wanted is None else (wanted - 8 - len(text)) % _BLOCK)
    head = len(text).to_bytes(8, "little") + text
    return TargetFile(name, head, tuple(_works(groups, len(head))), len(head) + at)


def _works(groups: Sequence[_Group], at: int) -> Iterator[Work]:
    for unit, outputs in groups:
        placed: list[Placed] = []
        for key, type_ in outputs:
            placed.append(Placed(key, type_, at, at := at + nbytes(type_)))
        yield Work(unit, tuple(placed))


def _width(type_: TensorType) -> int:
    """Bytes to whose multiple a tensor of this type is aligned."""
    return max(1, DTYPE_BITS[type_.dtype] // 8)


def _aligned(groups: Sequence[_Group]) -> bool:
    at = 0
    for _, type_ in (output for _, outputs in groups for output in outputs):
        if at % _width(type_):
            return False
        at += nbytes(type_)
    return True


def _by_width(groups: Sequence[_Group]) -> list[_Group]:
    """The wider dtypes first; a unit with outputs of several is cut between them."""
    widths = sorted({_width(t) for _, outputs in groups for _, t in outputs}, reverse=True)
    cut = ((unit, tuple(o for o in outputs if _width(o[1]) == width)) for width in widths for unit, outputs in groups)
    return [group for group in cut if group[1]]
