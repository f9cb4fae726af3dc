"""Where each trace site lies in a recorded graph: stacks of layers, each a range of nodes with its branches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

from torch.fx import Node

from blockaudit.graph.flow import op, peel
from blockaudit.graph.norms import Norm
from blockaudit.graph.reader import Reader
from blockaudit.graph.record import Recording
from blockaudit.graph.steps import Step, of_stack
from blockaudit.graph.stream import Stream
from blockaudit.records.bound import BoundManifest
from blockaudit.reference import assembly


@dataclass(frozen=True)
class Layer:
    """One layer: `enter` is the state that it reads, `leave` the one that it gives."""

    stack: str
    number: int
    steps: tuple[Step, ...]

    @property
    def enter(self) -> Node:
        return self.steps[0].add.shortcut

    @property
    def leave(self) -> Node:
        return leaves(self.steps[-1])

    def norm(self, branch: str, site: str) -> Norm | None:
        """The executed norm at `norm_in`, `norm_out` or `norm_post` of a branch; none of parts of a row."""
        step = next((s for s in self.steps if s.name == branch), None)
        if step is None:
            return None
        found = {"norm_in": step.branch.norm_in, "norm_out": step.branch.norm_out}.get(site, step.add.norm_post)
        return found if found is not None and _width(found.source) == _width(self.enter) else None


@dataclass(frozen=True)
class StackProgram:
    """One stack of the stream: embedding, layers in order of execution, final norm."""

    name: str
    stream: Stream
    layers: tuple[Layer, ...]
    end: Node


@dataclass(frozen=True)
class Program:
    """Everything that a recording says of sites. `unread` says what of it could not be read."""

    recording: Recording
    stacks: tuple[StackProgram, ...]
    logits: Node | None
    unread: tuple[str, ...] = field(default=())


def _width(node: Node) -> int:
    return node.meta["val"].shape[-1]


def leaves(step: Step) -> Node:
    """The state after a branch: normalised where there is a post-add norm."""
    return step.add.norm_post.output if step.add.norm_post is not None else step.add.total


def read(bound: BoundManifest, recording: Recording) -> Program:
    """The sites of a recording, by the manifest's stacks and names."""
    reader = Reader(recording)
    spans = [s for s in bound.spans if not s.ignored]
    stacks: list[StackProgram] = []
    unread: list[str] = []
    for span in spans:
        key = span.name if len(spans) > 1 else next(iter(recording.hidden), "")
        end = recording.hidden.get(key) or (reader.end() if span.name != "encoder" or len(spans) == 1 else None)
        if end is None:
            unread.append(f"{span.name}: no value that leaves the stack was found")
            continue
        stream = _read(reader, end)
        unread += [f"{span.name}: {doubt}" for doubt in stream.unread]
        steps = of_stack(bound, span, stream, span.run or 0)
        rooted = _rooted(bound, reader, span.name, stream, steps)
        if rooted is not None:
            stream, steps = rooted, of_stack(bound, span, rooted, span.run or 0)
        if not steps:
            unread.append(f"{span.name}: {len(stream.adds)} residual adds in {span.run} layers")
        numbers = dict.fromkeys(s.layer for s in steps)
        steps = [s for n in numbers for s in _named(bound, span.name, [s for s in steps if s.layer == n])]
        layers = tuple(Layer(span.name, n, tuple(s for s in steps if s.layer == n)) for n in numbers)
        stacks.append(StackProgram(span.name, stream, layers, end))
    return Program(recording, tuple(stacks), recording.logits, tuple(unread))


def _named(bound: BoundManifest, stack: str, steps: list[Step]) -> list[Step]:
    """A layer's branches; one whose kind is not told has the name of the one declared branch that is left."""
    names = [b.name for s in bound.manifest.stacks if s.name == stack for b in s.branches]
    declared = [n for n in dict.fromkeys(names) if assembly.owner_in(bound, stack, steps[0].layer, n) is not None]
    left = [n for n in declared if all(s.name != n for s in steps)]
    strange = [s for s in steps if s.name not in declared]
    if len(left) != 1 or len(strange) != 1 or strange[0].told:
        return steps
    return [replace(s, name=left[0]) if s is strange[0] else s for s in steps]


def _read(reader: Reader, end: Node) -> Stream:
    """The stream that ends at a value.

    A final norm that is applied twice is one of its stack, with both in it; it may also follow a norm after an add.
    """
    stream = reader.stream(end)
    outer = reader.norm(peel(end)) if not stream.adds else None
    inner = reader.norm(peel(outer.source)) if outer is not None else None
    if outer is None or inner is None:
        return stream
    again = reader.stream(outer.source)
    if not again.adds:
        return stream
    return replace(again, final_norm=outer if again.final_norm is None else replace(inner, output=outer.output))


def _rooted(bound: BoundManifest, reader: Reader, stack: str, stream: Stream, steps: list[Step]) -> Stream | None:
    """The stream with normalised shortcuts, where it reads as well with a norm after the add before; None: as it is.

    x + F(N(x)) with N(x) in place of x is both: a norm of this branch that the add uses, or one behind the add before.
    The manifest says which norm there is.
    """
    adds, embed, changed = list(stream.adds), stream.embed_norm, False
    for i, add in enumerate(adds):
        before = embed if i == 0 else adds[i - 1].norm_post
        mine = next((s for s in steps if s.add is stream.adds[i]), None)
        other = None if i == 0 else next((s for s in reversed(steps) if s.add is stream.adds[i - 1]), None)
        if before is None or mine is None or any(b.norm_in for b in add.branches) or stream.normalised_shortcut:
            continue
        there = f"{stack}.embed_norm" if other is None else f"{_owner(bound, stack, other)}.norm_post"
        if _has(bound, there) or not _has(bound, f"{_owner(bound, stack, mine)}.norm_in"):
            continue
        if add.shortcut is not before.output or before.weight == _declared_weight(bound, stack, other):
            continue
        adds[i], changed = reader.rooted(add, before.source), True
        if i == 0:
            embed = None
        else:
            adds[i - 1] = replace(adds[i - 1], norm_post=None)
    return replace(stream, adds=tuple(adds), embed_norm=embed) if changed else None


def _owner(bound: BoundManifest, stack: str, step: Step) -> str:
    return assembly.owner_in(bound, stack, step.layer, step.name) or f"{stack}.{step.name}"


def _declared_weight(bound: BoundManifest, stack: str, step: Step | None) -> str | None:
    """The key of the norm that a branch is declared to read through: behind its own add that norm has only moved."""
    if step is None:
        return None
    site = assembly.norm_site(bound, f"{_owner(bound, stack, step)}.norm_in", stack, step.layer)
    return site.weight if site is not None else None


def _has(bound: BoundManifest, site: str) -> bool:
    field = bound.fields.get(f"{site}.present")
    return field is not None and field.value is True


def aligned(read_from: Recording, run: Recording) -> dict[Node, Node]:
    """Nodes of one recording -> nodes of another of the same model on other shapes.

    What has no counterpart is left out.
    Two forward passes of one model run the same operators on the same parameters, save where code looks at shapes.
    """
    ours, theirs = read_from.nodes, run.nodes
    a, b = [_token(read_from, n) for n in ours], [_token(run, n) for n in theirs]
    if a == b:
        return dict(zip(ours, theirs, strict=True))
    found: dict[Node, Node] = {}
    for i, j, size in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        found |= dict(zip(ours[i : i + size], theirs[j : j + size], strict=True))
    return found


def _token(recording: Recording, node: Node) -> str:
    if node.op == "get_attr":
        return f"= {recording.names.get(str(node.target), '')}"
    return op(node) or node.op


def moved(norm: Norm, to: Mapping[Node, Node]) -> tuple[Node, Node] | None:
    """(source, output) of a norm in the other recording."""
    source, output = to.get(norm.source), to.get(norm.output)
    return (source, output) if source is not None and output is not None else None
