"""A candidate run layer by layer: the values at its sites, its layers on other states, its branches and norms alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from blockaudit.graph.flow import op
from blockaudit.graph.norms import Norm
from blockaudit.graph.record import Recording
from blockaudit.graph.steps import Step
from blockaudit.records.bound import BoundManifest
from blockaudit.reference.assembly import Block
from blockaudit.trace import program
from blockaudit.trace.engine import Engine, Values
from blockaudit.trace.models import Inputs, Model
from blockaudit.trace.program import Layer, Program, StackProgram

Sites = dict[str, torch.Tensor]


@dataclass
class Segment:
    """A range of nodes: one layer, or what lies between layers. `sites` are read off nodes that stand in it."""

    begin: int
    end: int
    layer: Layer | None = None
    sites: dict[str, Node] = field(default_factory=dict[str, Node])


class Candidate:
    """One model in one dtype, its sites known once, run on any batch."""

    recorded = False

    def __init__(self, model: Model, bound: BoundManifest, device: torch.device, like: Candidate | None = None) -> None:
        """like: the same candidate in float32, whose reading stands in where this dtype's has operators of its own."""
        self.model, self.bound, self.device = model, bound, device
        self._recorded: dict[Hashable, Recording] = {}
        self.recording: Recording = self._record(_inputs_like(model))
        self.program: Program = program.read(bound, self.recording)
        if like is not None and self.program.unread and not like.program.unread:
            self.recording, self.program = like.recording, like.program

    @property
    def label(self) -> str:
        return self.model.label

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def stacks(self) -> tuple[str, ...]:
        return tuple(stack.name for stack in self.program.stacks)

    def run(self, inputs: Inputs) -> Run:
        """The candidate on one batch. Operators are recorded anew for shapes that were not seen before."""
        given = {k: v for k, v in inputs.items() if k in self.model.takes}
        recording = self._record(given)
        return Run(self, recording, program.aligned(self.recording, recording), given)

    def _record(self, inputs: Inputs) -> Recording:
        shapes = tuple((k, tuple(v.shape), v.dtype) for k, v in inputs.items())
        found = self._recorded.get(shapes)
        if found is None:
            found = self.model.record(inputs)
            if not found.looked:
                self._recorded[shapes] = found
        return found


class Run:
    """One free run, segment by segment; what the layer that ran last needs to be run again is kept until the next."""

    def __init__(self, candidate: Candidate, recording: Recording, at: Mapping[Node, Node], inputs: Inputs) -> None:
        self.candidate, self.at = candidate, at
        self.engine = Engine(recording, candidate.model.weight, candidate.device, candidate.model.matrix)
        self.batch, self.length = inputs["input_ids"].shape
        self._values: Values = self.engine.inputs(inputs.values())
        self._known: Values = {}
        self._routed: dict[str, torch.Tensor] = {}
        self._routers: dict[Step, Node | None] = {}
        self._left: dict[str, torch.Tensor] = {}
        self.outputs: dict[str, torch.Tensor] = {}  # what each stack that has run gives, behind its final norm
        self.segments = self._segmented()

    # -- the free run -----------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.candidate.device

    @property
    def stacks(self) -> tuple[str, ...]:
        return self.candidate.stacks

    def reads(self, segment: Segment) -> Sequence[str]:
        """Keys of the checkpoint that a segment reads, in the order of their reading."""
        names = self.engine.weights_in(segment.begin, segment.end)
        return [k for n in names if (k := self.candidate.model.key(n)) is not None]

    def advance(self, segment: Segment) -> Sites:
        """Run one segment and give the values at its sites, each [B, S, ...]."""
        layer = segment.layer
        region = self.engine.nodes[segment.begin : segment.end]
        outside = {n: self._values[n] for n in self.engine.outside(region) if n in self._values}
        keep = self._wanted(layer) if layer is not None else {*segment.sites.values(), *self._read_by(segment)}
        made = self.engine.run(segment.begin, segment.end, self._values, keep)
        self._known = outside | made
        if layer is not None:
            found = self.sites(layer, self._known)
            self._left[layer.stack] = found["state"]
            return found
        return {site: self.rows(made[node]) for site, node in segment.sites.items() if node in made}

    def sites(self, layer: Layer, values: Values) -> Sites:
        """The sites of one layer from values of its nodes, by `branch.site`, `state` last."""
        found: Sites = {}
        self._routed = {}
        for step in layer.steps:
            chosen = self._router(step)
            if chosen in values:
                self._routed[step.name] = self._experts(values[chosen])
            for site, value in self._step(step, values):
                found[f"{step.name}.{site}"] = self.rows(value)
        leave = self.at.get(layer.leave)
        if leave in values:
            found["state"] = self.rows(values[leave])
        return found

    def _step(self, step: Step, values: Values) -> Iterator[tuple[str, torch.Tensor]]:
        branch, add = step.branch, step.add
        first = branch is add.branches[0]
        alone = len(add.branches) == 1
        if first and (used := self._residual(step, values)) is not None:
            yield "residual", used
        width = add.total.meta["val"].shape[-1]
        for site, node in self._nodes(step).items():
            if node in values and values[node].shape[-1] == width:  # a norm of parts of a row is no site
                yield site, values[node]
        update = self.at.get(branch.update)
        if update in values:
            value = values[update]
            yield "update", value if branch.factor in (None, 1.0) else value * branch.factor
        total, after = self.at.get(add.total), self.at.get(program.leaves(step))
        if step.last and total in values:
            yield "sum", values[total]
        if alone and after in values:
            yield "state", values[after]

    def _nodes(self, step: Step) -> dict[str, Node]:
        """Sites that are one node's value."""
        branch = step.branch
        end = branch.norm_out.source if branch.norm_out is not None else branch.core
        found = {"norm_in": branch.norm_in.output if branch.norm_in else None, "branch": end}
        found["norm_out"] = branch.norm_out.output if branch.norm_out else None
        if branch is not step.add.branches[0] and branch.norm_in is not None:
            shared = [b.norm_in.output for b in step.add.branches if b.norm_in is not None and b is not branch]
            if branch.norm_in.output in shared:
                found["norm_in"] = None  # it belongs to the first that reads it
        return {s: self.at[n] for s, n in found.items() if n is not None and n in self.at}

    def _residual(self, step: Step, values: Values) -> torch.Tensor | None:
        """The value that the add uses as its shortcut: the sum with every update at zero."""
        add = step.add
        shortcut, total = self.at.get(add.used or add.shortcut), self.at.get(add.total)
        norm = step.branch.norm_in
        stream = next(s.stream for s in self.candidate.program.stacks if any(add is a for a in s.stream.adds))
        if stream.normalised_shortcut and norm is not None:
            shortcut = self.at.get(norm.output)
        if shortcut is None or total is None or shortcut not in values:
            return None
        if add.shortcut_scale == 1.0:
            return values[shortcut]
        if add.shortcut_scale == 0.0:
            return torch.zeros_like(values[shortcut])
        updates = [self.at[b.update] for b in add.branches if b.update in self.at]
        region = [n for n in self.engine.flow.between(shortcut, total) if n not in updates]
        region = [n for n in region if not any(self.engine.flow.precedes(n, u) for u in updates)]
        try:
            known = self.engine.resolved(self.engine.outside(region) - {*updates}, values)
        except KeyError:
            return values[shortcut] * add.shortcut_scale if add.shortcut_scale is not None else None
        known |= {u: torch.zeros_like(values[u]) for u in updates}
        return self.engine.replay(region, known, total)

    def entering(self, segment: Segment) -> torch.Tensor:
        """The state that entered the layer that ran last."""
        assert segment.layer is not None
        return self.rows(self._known[self.at[segment.layer.enter]])

    def judged(self, block: Block, sites: Sites) -> frozenset[str] | None:
        """Which sites can be held to their own inputs: all of them."""
        del block, sites
        return None

    def begins_in(self, segment: Segment, stack: str) -> bool:
        """Whether this segment holds a stack's embedding."""
        prefix = f"{stack}." if len(self.stacks) > 1 else ""
        return f"{prefix}embed" in segment.sites

    def ends_in(self, segment: Segment, stack: str) -> bool:
        """Whether a stack has run to its end with this segment, and had not before."""
        layers = next(s.layers for s in self.candidate.program.stacks if s.name == stack)
        last = max((s.end for s in self.segments if s.layer in layers), default=0)
        return segment.layer is None and segment.begin == last and bool(layers)

    def gives(self, stack: str, normed: torch.Tensor | None, declared: bool) -> torch.Tensor | None:
        """What a stack that has run gives: behind its final norm, where there is one."""
        del declared
        return self._left.get(stack) if normed is None else normed

    def left(self, stack: str) -> torch.Tensor | None:
        """The state that left the last layer of a stack."""
        return self._left.get(stack)

    # -- parts of the layer that ran last ---------------------------------------------------------------------------

    def rerun(self, segment: Segment, state: torch.Tensor, ends: Mapping[str, torch.Tensor]) -> Sites:
        """The sites of that layer on another state that enters it; ends: other values that left earlier stacks."""
        layer = segment.layer
        assert layer is not None
        enter = self.at[layer.enter]
        region = self.engine.nodes[segment.begin : segment.end]
        inside = {*region}
        values = {n: v for n, v in self._known.items() if n not in inside}
        values[enter] = self._as(enter, state)
        for stack in self.candidate.program.stacks:
            end = self.at.get(stack.end)
            if stack.name in ends and end in values and stack.name != layer.stack:
                values[end] = self._as(end, ends[stack.name])
        kept: Values = {enter: values[enter]}
        kept |= self.engine.run(segment.begin, segment.end, values, self._wanted(layer))
        return self.sites(layer, {**self._known, **kept})

    def branch(self, layer: Layer, name: str, x: torch.Tensor) -> torch.Tensor:
        """The candidate's own branch function on x, in its own dtype; the other inputs are those of the free run."""
        step = next(s for s in layer.steps if s.name == name)
        start, end = self._ends(step)
        if start is end:
            return x
        region = self.engine.flow.between(start, end)
        known = self.engine.resolved(self.engine.outside(region) - {start}, self._known)
        value = self.engine.replay(region, {**known, start: self._as(start, x)}, end)
        return self.rows(value)

    def enter(self, stack: str, state: torch.Tensor) -> torch.Tensor:
        """From the (normalised) embedding to the state that the first layer reads: ALBERT projects it."""
        program_ = next(s for s in self.candidate.program.stacks if s.name == stack)
        stream = program_.stream
        start = stream.embed_norm.output if stream.embed_norm is not None else stream.start
        if not program_.layers:
            return state
        a, b = self.at.get(start), self.at.get(program_.layers[0].enter)
        region = self.engine.flow.between(a, b) if a is not None and b is not None else []
        if a is None or b is None or not region:
            return state
        known = self.engine.resolved(self.engine.outside(region) - {a}, self._known | self._values)
        return self.rows(self.engine.replay(region, {**known, a: self._as(a, state)}, b)).to(state.dtype)

    def routes(self, layer: Layer, name: str) -> torch.Tensor | None:
        """The experts that each row went to when the layer ran last, in ascending order [B, S, top_k]."""
        del layer
        return self._routed.get(name)

    def route(self, layer: Layer, name: str, x: torch.Tensor) -> torch.Tensor | None:
        """The experts that the candidate's own router picks for x."""
        step = next(s for s in layer.steps if s.name == name)
        chosen = self._router(step)
        if chosen is None:
            return None
        start = self._ends(step)[0]
        region = self.engine.flow.between(start, chosen)
        known = self.engine.resolved(self.engine.outside(region) - {start}, self._known)
        return self._experts(self.engine.replay(region, {**known, start: self._as(start, x)}, chosen))

    def _experts(self, indices: torch.Tensor) -> torch.Tensor:
        return indices.reshape(self.batch, -1, indices.shape[-1]).sort(-1).values

    def _router(self, step: Step) -> Node | None:
        """The numbers of the chosen experts, where a branch chooses."""
        if step.branch.kind != "moe":
            return None
        if step not in self._routers:
            ends = step.branch.norm_in.output if step.branch.norm_in is not None else step.add.shortcut
            found = None
            if ends in self.at and step.branch.core in self.at:
                region = self.engine.flow.between(self.at[ends], self.at[step.branch.core])
                last = next((n for n in reversed(region) if op(n) == "topk"), None)
                users = last.users if last is not None else ()
                found = next((u for u in users if op(u) == "getitem" and u.args[1] == 1), None)
            self._routers[step] = found
        return self._routers[step]

    def norm(self, norm: Norm) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """One norm of the last segment as a function of rows [n, D] in the candidate's dtype.

        None where it cannot be asked.
        """
        found = program.moved(norm, self.at)
        if found is None:
            return None
        source, output = found
        region = self.engine.flow.between(source, output)
        try:
            known = self.engine.resolved(self.engine.outside(region) - {source}, self._known)
        except KeyError:
            return None
        shape = tuple(source.meta["val"].shape)
        count = 1
        for n in shape[:-1]:
            count *= n

        def ask(rows: torch.Tensor) -> torch.Tensor:
            # The recorded operators take so many rows, no more and no fewer.
            answers: list[torch.Tensor] = []
            for start in range(0, len(rows), count):
                part = rows[start : start + count]
                filled = torch.cat([part, part[-1:].expand(count - len(part), -1)]).reshape(shape)
                value = self.engine.replay(region, {**known, source: self._typed(source, filled)}, output)
                answers.append(value.reshape(count, -1)[: len(part)])
            return torch.cat(answers)

        return ask

    # -- where things lie -------------------------------------------------------------------------------------------

    def rows(self, value: torch.Tensor) -> torch.Tensor:
        """A value as [B, S, D]: some layers keep their rows flat."""
        if value.dim() == 2 and value.shape[0] % self.batch == 0:
            return value.reshape(self.batch, -1, value.shape[-1])
        return value

    def _as(self, node: Node, value: torch.Tensor) -> torch.Tensor:
        """A value of ours in the shape and dtype that the recorded one had."""
        return self._typed(node, value).reshape(tuple(node.meta["val"].shape)).contiguous()

    def _typed(self, node: Node, value: torch.Tensor) -> torch.Tensor:
        return value.to(self.candidate.device, node.meta["val"].dtype)

    def _ends(self, step: Step) -> tuple[Node, Node]:
        branch = step.branch
        start = branch.norm_in.output if branch.norm_in is not None else (branch.origin or step.add.shortcut)
        end = branch.norm_out.source if branch.norm_out is not None else branch.core
        return self.at[start], self.at[end]

    def _read_by(self, segment: Segment) -> set[Node]:
        """What the norms between layers are made of."""
        found: set[Node] = set()
        for norm in self.outer_norms().values():
            place = program.moved(norm, self.at)
            if place is not None and segment.begin <= self.engine.index[place[1]] < segment.end:
                found |= {place[0], *self.engine.outside(self.engine.flow.between(*place))}
        return found

    def outer_norms(self) -> dict[str, Norm]:
        """The norms that belong to no layer, by site."""
        stacks = self.candidate.program.stacks
        found: dict[str, Norm] = {}
        for stack in stacks:
            prefix = f"{stack.name}." if len(stacks) > 1 else ""
            norms = {"embed_norm": stack.stream.embed_norm, "final_norm": stack.stream.final_norm}
            found |= {prefix + site: norm for site, norm in norms.items() if norm is not None}
        return found

    def _wanted(self, layer: Layer) -> set[Node]:
        """Every node whose value the sites, the branches and the norms of a layer are made of."""
        flow, found = self.engine.flow, set[Node]()
        for step in layer.steps:
            branch, add = step.branch, step.add
            norms = [n for n in (branch.norm_in, branch.norm_out, add.norm_post) if n is not None]
            used = [add.used] if add.used is not None else []
            every = [add.shortcut, add.total, branch.update, branch.core, program.leaves(step), *used]
            every += [m for n in norms for m in (n.source, n.output)]
            found |= {self.at[n] for n in every if n in self.at}
            chosen = self._router(step)
            found |= {chosen} if chosen is not None else set()
            regions = [(n.source, n.output) for n in norms] + [(add.shortcut, add.total)]
            start, end = self._ends(step) if all(n in self.at for n in every) else (None, None)
            spans = [(self.at[a], self.at[b]) for a, b in regions if a in self.at and b in self.at]
            spans += [(start, end)] if start is not None and end is not None else []
            for a, b in spans:
                found |= self.engine.outside(flow.between(a, b))
        return found - self.engine.weights

    def _segmented(self) -> list[Segment]:
        """Layers and what lies between them, in order of execution; one piece where layers overlap."""
        index, found, reached = self.engine.index, list[Segment](), 0
        for stack in self.candidate.program.stacks:
            before = Segment(reached, reached)
            found.append(before)
            for i, layer in enumerate(stack.layers):
                enter, leave = self.at.get(layer.enter), self.at.get(layer.leave)
                if enter is None or leave is None:
                    continue
                begin = max(index[enter] + 1, reached) if i == 0 else reached
                if i == 0:
                    before.end = begin
                found.append(Segment(begin, index[leave] + 1, layer))
                reached = index[leave] + 1
            before.end = max(before.end, before.begin)
        found.append(Segment(reached, len(self.engine.nodes)))
        for site, node in self._between():
            place = next((s for s in found if s.begin <= index[node] < s.end), None)
            if place is not None and place.layer is None:
                place.sites[site] = node
        return found

    def _between(self) -> Iterator[tuple[str, Node]]:
        stacks = self.candidate.program.stacks
        for stack in (s for s in stacks if s.layers):
            prefix = f"{stack.name}." if len(stacks) > 1 else ""
            for site, node in _outer(stack):
                if node in self.at:
                    yield prefix + site, self.at[node]
        logits = self.candidate.program.logits
        if logits is not None and logits in self.at:
            yield "logits", self.at[logits]


def _outer(stack: StackProgram) -> Iterator[tuple[str, Node]]:
    stream = stack.stream
    yield "embed", stream.start
    if stream.embed_norm is not None:
        yield "embed_norm", stream.embed_norm.output
    if stream.final_norm is not None:
        yield "final_norm", stream.final_norm.output


def _inputs_like(model: Model) -> dict[str, torch.Tensor]:
    ids = torch.zeros(2, 7, dtype=torch.long)
    every = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": ids.clone()}
    return {k: v for k, v in every.items() if k in model.takes or k == "input_ids"}
