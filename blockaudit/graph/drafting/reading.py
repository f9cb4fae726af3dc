"""What one recording says of a block, in plain values: branches and norms by the names of their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from blockaudit.graph.flow import peel
from blockaudit.graph.norms import Norm
from blockaudit.graph.reader import Reader
from blockaudit.graph.record import Recording, RecordingError, record
from blockaudit.graph.stream import Add, Branch, Stream

FIELDS = (
    "family", "epsilon", "epsilon_location", "variance_correction", "center", "scale", "scale_offset", "bias",
    "work_dtype", "cast_order",
)  # fmt: skip


@dataclass(frozen=True)
class NormFact:
    """A norm as executed; `weight` is its parameter."""

    weight: str
    fields: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class BranchFact:
    """A branch as executed; `norm_post` is that of its add where it is the last of it."""

    kind: str
    norm_in: NormFact | None
    norm_out: NormFact | None
    norm_post: NormFact | None
    inner: tuple[NormFact, ...]
    scale: float | None
    softcap: float | None
    shares: str | None  # kind of the branch whose input norm it reads
    parameters: frozenset[str]


@dataclass(frozen=True)
class AddFact:
    """One residual add."""

    shortcut_scale: float | None
    branches: tuple[BranchFact, ...]


@dataclass(frozen=True)
class StackFact:
    """A whole stack, first add first."""

    adds: tuple[AddFact, ...]
    embed_norm: NormFact | None
    final_norm: NormFact | None
    embedding_scale: float | None
    shifted: bool
    unread: tuple[str, ...]
    embedding: frozenset[str]  # parameters that the value before the first add is made of


@dataclass(frozen=True)
class Reading:
    """Stacks by name, in order of execution; the factor and the softcap of the logits (None: not read, none)."""

    stacks: dict[str, StackFact]
    logit_scale: float | None
    softcap: float | None


def read(config: Mapping[str, Any]) -> Reading:
    """The class that `config` names, in bfloat16 for the casts and in FP32 for the numbers. Raises RecordingError."""
    low, exact = record(config), record(config, torch.float32)
    a, b = facts(low), facts(exact)
    if set(a.stacks) != set(b.stacks):
        raise RecordingError("bfloat16 and FP32 run different stacks")
    merged: dict[str, StackFact] = {}
    for name, stack in a.stacks.items():
        other = b.stacks[name]
        if [shape(x) for x in stack.adds] != [shape(x) for x in other.adds]:
            raise RecordingError(f"{name}: bfloat16 and FP32 run different blocks")
        adds = tuple(_exact(x, y) for x, y in zip(stack.adds, other.adds, strict=True))
        unread = tuple(dict.fromkeys((*stack.unread, *other.unread)))
        merged[name] = replace(stack, adds=adds, embedding_scale=other.embedding_scale, unread=unread)
    return Reading(merged, b.logit_scale, b.softcap)


def recast(read: Reading, casts: Mapping[str, tuple[Any, Any]]) -> Reading:
    """Norms of the weights in `casts` with these work dtypes and cast orders."""

    def of(norm: NormFact | None) -> NormFact | None:
        if norm is None or norm.weight not in casts:
            return norm
        work, order = casts[norm.weight]
        fields = {**dict(norm.fields), "work_dtype": work, "cast_order": order}
        return NormFact(norm.weight, tuple(fields.items()))

    def branch(b: BranchFact) -> BranchFact:
        inner = tuple(n for n in map(of, b.inner) if n is not None)
        return replace(b, norm_in=of(b.norm_in), norm_out=of(b.norm_out), norm_post=of(b.norm_post), inner=inner)

    stacks = {
        name: replace(
            s,
            adds=tuple(AddFact(a.shortcut_scale, tuple(map(branch, a.branches))) for a in s.adds),
            embed_norm=of(s.embed_norm),
            final_norm=of(s.final_norm),
        )
        for name, s in read.stacks.items()
    }
    return replace(read, stacks=stacks)


def numbers(config: Mapping[str, Any]) -> Reading:
    """The same in FP32 alone: the casts are not to be trusted."""
    return facts(record(config, torch.float32))


def shape(add: AddFact) -> Any:
    """What an add is made of, its numbers left out."""
    return tuple((b.kind, *(n and n.weight for n in sites(b).values()), b.shares) for b in add.branches)


def sites(branch: BranchFact) -> dict[str, NormFact | None]:
    """The norm sites around a branch."""
    return {"norm_in": branch.norm_in, "norm_out": branch.norm_out, "norm_post": branch.norm_post}


def _exact(add: AddFact, by: AddFact) -> AddFact:
    pairs = zip(add.branches, by.branches, strict=True)
    branches = tuple(replace(x, scale=y.scale, softcap=y.softcap) for x, y in pairs)
    return AddFact(by.shortcut_scale, branches)


def facts(recording: Recording) -> Reading:
    """Every stack of a recording."""
    reader = Reader(recording)
    ends = dict(recording.hidden)
    if not ends and (end := reader.end()) is not None:
        ends = {"decoder": end}
    # Memory that is given from outside is no stack.
    ends = {k: end for k, end in ends.items() if peel(end).op != "placeholder"}
    ends = dict(sorted(ends.items(), key=lambda item: reader.graph.index[item[1]]))
    stacks = {name: _stack(reader, reader.stream(end)) for name, end in ends.items()}
    scale, cap = (None, None) if recording.logits is None else reader.head(recording.logits)
    return Reading(stacks, scale, cap)


def _stack(reader: Reader, stream: Stream) -> StackFact:
    return StackFact(
        tuple(_add(reader, a) for a in stream.adds),
        _norm(stream.embed_norm),
        _norm(stream.final_norm),
        stream.embedding_scale,
        stream.normalised_shortcut,
        stream.unread,
        frozenset(_made_of(reader, stream)),
    )


def _add(reader: Reader, add: Add) -> AddFact:
    found = tuple(_branch(reader, add, b) for b in add.branches)
    return AddFact(add.shortcut_scale, found)


def _branch(reader: Reader, add: Add, branch: Branch) -> BranchFact:
    shares = _shares(add, branch)
    norms = (branch.norm_in, branch.norm_out, add.norm_post, *branch.inner)
    stems = {n.weight.removesuffix(".weight") for n in norms if n is not None and n.weight}
    last = branch is add.branches[-1]
    return BranchFact(
        branch.kind,
        None if shares else _norm(branch.norm_in),
        _norm(branch.norm_out),
        _norm(add.norm_post) if last else None,
        tuple(n for n in map(_norm, branch.inner) if n is not None),
        branch.scale,
        branch.softcap,
        shares,
        frozenset(p for p in _parameters(reader, add.shortcut, branch.update) if not {p, p.rpartition(".")[0]} & stems),
    )


def _shares(add: Add, branch: Branch) -> str | None:
    for other in add.branches:
        if other is branch:
            return None
        if branch.norm_in is not None and other.norm_in is not None and other.norm_in.output is branch.norm_in.output:
            return other.kind
    return None


def _parameters(reader: Reader, start: Node, end: Node) -> Iterable[str]:
    """Parameters that the operators between two values read."""
    graph, names = reader.graph, reader.recording.names
    region = graph.between(start, end)
    # What is made of another stack's state (keys and values of its memory) belongs to the branch as well.
    memory = [m for m in reader.recording.hidden.values() if not graph.precedes(start, m) and graph.precedes(m, end)]
    region += [
        n for m in memory for n in graph.between(m, end) if not graph.precedes(n, start) and n not in {*region, start}
    ]
    todo = [a for n in region for a in n.all_input_nodes if not graph.is_data(a)]
    seen: set[Node] = set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "get_attr":
            name = names.get(str(node.target), "")
            if name:
                yield name
        todo += node.all_input_nodes


def _made_of(reader: Reader, stream: Stream) -> Iterable[str]:
    """Parameters that a stack's state is made of before its first add."""
    first = stream.adds[0].shortcut if stream.adds else stream.start
    graph, names = reader.graph, reader.recording.names
    found = (n for n in graph.nodes if n.op == "get_attr" and graph.precedes(n, first))
    return [name for n in found if (name := names.get(str(n.target), ""))]


def _norm(norm: Norm | None) -> NormFact | None:
    if norm is None:
        return None
    found = [(name, getattr(norm, name)) for name in FIELDS]
    return NormFact(norm.weight, (*found, ("reduction_axes", list(norm.axes))))
