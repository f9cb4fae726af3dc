"""Where each trace site lies in a recorded graph: stacks of layers, each a range of nodes with its branches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from torch.fx import Node

from blockaudit.graph.flow import op
from blockaudit.graph.norms import Norm
from blockaudit.graph.reader import Reader
from blockaudit.graph.record import Recording
from blockaudit.graph.steps import Step, of_stack
from blockaudit.graph.stream import Stream
from blockaudit.records.bound import BoundManifest


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
        """The executed norm at `norm_in`, `norm_out` or `norm_post` of a branch."""
        step = next((s for s in self.steps if s.name == branch), None)
        if step is None:
            return None
        return {"norm_in": step.branch.norm_in, "norm_out": step.branch.norm_out}.get(site, step.add.norm_post)


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
        stream = reader.stream(end)
        unread += [f"{span.name}: {doubt}" for doubt in stream.unread]
        steps = of_stack(bound, span, stream, span.run or 0)
        if not steps:
            unread.append(f"{span.name}: {len(stream.adds)} residual adds in {span.run} layers")
        numbers = dict.fromkeys(s.layer for s in steps)
        layers = tuple(Layer(span.name, n, tuple(s for s in steps if s.layer == n)) for n in numbers)
        stacks.append(StackProgram(span.name, stream, layers, end))
    return Program(recording, tuple(stacks), recording.logits, tuple(unread))


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
