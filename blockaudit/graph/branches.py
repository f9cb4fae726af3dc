"""Branches: what is done between two points of the stream, told by the operators in between."""

from __future__ import annotations

import torch
from torch.fx import Node

from blockaudit.graph import causality, rows
from blockaudit.graph.flow import MOVES, carried, dtype, number, op, operand, peel, shape
from blockaudit.graph.linear import is_sum
from blockaudit.graph.norms import Norm
from blockaudit.graph.record import LENGTH
from blockaudit.graph.stream import Branch
from blockaudit.graph.sums import Sums
from blockaudit.graph.values import SUMS, times

_PROJECTS = {"mm", "addmm", "bmm", "split", "chunk", "split_with_sizes", "getitem", "slice"}


class Branches(Sums):
    """Reads the branches of a sum."""

    def _branches(self, shortcut: Node, terms: list[tuple[Node, float | None]]) -> tuple[Branch, ...]:
        """The branches of one add.

        A term that is a sum of two is opened where one of them is attention: experts that are summed before they join
        the stream are one branch.
        """
        opened = [u for t, f in terms for u in self._opened(shortcut, t, f)]
        opened.sort(key=lambda u: self.graph.index[u[0]])
        branches = tuple(self._branch(shortcut, u, f) for u, f in opened)
        if len(opened) == len(terms) or any("attention" in b.kind for b in branches):
            return branches
        return tuple(self._branch(shortcut, t, f) for t, f in terms)

    def _branch(self, shortcut: Node, update: Node, factor: float | None) -> Branch:
        state = self._origin(shortcut, update) or shortcut
        # A norm's own weight is no factor on the branch.
        core, own = (update, 1.0) if self._ends(state, update) else self._scaled(update)
        target = self._target(state, core)
        core = target or core
        narrow = self.graph.bottlenecks(state, core)
        norm_in = self._entry(state, narrow)
        norm_out = self.norm(core)
        if norm_out is not None and norm_in is not None and norm_out.output is norm_in.output:
            norm_out = None
        start = norm_in.output if norm_in else state
        end = norm_out.source if norm_out else core
        region = self.graph.between(start, peel(end))
        kind, memory = self._kind(start, region, state)
        taken = {n.output for n in (norm_in, norm_out) if n is not None}
        inner = tuple(n for r in region if r not in taken and (n := self._inner(r)) is not None)
        scale, cap = times(own, factor), self._softcap(region)
        unseen = kind == "unclassified" and any(map(causality.attends, region))
        joined = norm_in is not None and carried(norm_in.source) is not carried(state)
        return Branch(
            update=update,
            norm_in=norm_in,
            norm_out=norm_out,
            inner=inner,
            scale=scale,
            kind=kind,
            memory=memory,
            softcap=cap,
            core=core,
            factor=factor,
            retracts=target is not None,
            beside=self._beside(state, norm_in) if joined and norm_in is not None else None,
            origin=state if state is not shortcut else None,
            doubt="a mask that cannot be replayed" if unseen else "",
        )

    def _target(self, state: Node, core: Node) -> Node | None:
        """The value towards which the state is moved, where an update is the difference of the two."""
        left, right = operand(core, 0), operand(core, 1)
        if left is None or right is None or peel(right) is not peel(state) or shape(left) != shape(core):
            return None
        alpha = core.kwargs.get("alpha", 1)
        away = (op(core) == "sub" and alpha == 1) or (op(core) in SUMS and alpha == -1)
        return peel(left) if away else None

    def _ends(self, state: Node, update: Node) -> bool:
        """Whether a norm ends at an update."""
        norm = self.norm(update)
        return norm is not None and peel(norm.source) is not peel(state)

    def _entry(self, state: Node, narrow: list[Node]) -> Norm | None:
        """The norm that a branch reads through: all of it runs through the norm's output."""
        best: Norm | None = None
        for node in narrow:
            found = self.norm(node)
            if found is not None and (peel(found.source) is peel(state) or self._beside(state, found) is not None):
                best = found
            elif best is not None:
                break
        return best

    def _beside(self, state: Node, norm: Norm) -> Node | None:
        """The earlier value that a norm reads joined to the state or summed with it."""
        source = carried(norm.source)
        if op(source) == "cat":
            parts = [carried(a) for a in source.all_input_nodes]
            others = [p for p in parts if p is not carried(state)]
            joined = len(parts) == 2 and len(others) == 1 and (number(source, 1) or 0) in (-1, len(shape(source)) - 1)
            return others[0] if joined and self.graph.is_data(others[0]) else None
        if op(source) not in SUMS:
            return None
        cores = [self._scaled(carried(a))[0] for a in source.all_input_nodes]
        others = [c for c in cores if c is not carried(state)]
        # Before the first add the earlier value is the state itself.
        other = others[0] if len(cores) == 2 and len(others) == 1 else carried(state) if not others else None
        if other is None or not self.graph.is_data(other) or self.graph.precedes(state, other):
            return None
        terms: list[tuple[Node, float | None]] = [(n, None) for n in dict.fromkeys((carried(state), other))]
        return other if is_sum(self.graph, self.recording.constants, source, terms) else None

    def _inner(self, node: Node) -> Norm | None:
        """A norm inside a branch that ends exactly here (on q, k or a latent)."""
        if op(node) in MOVES or not shape(node):
            return None
        found = self._at(node)
        if found is None or found.output is not node or not found.weight:
            return None
        # The last multiply and the last cast both end a norm: the one that nothing more of the norm follows is the end.
        after = [self._at(u) for u in node.users if op(u) not in MOVES]
        return None if any(n is not None and n.weight == found.weight for n in after) else found

    def _kind(self, start: Node, region: list[Node], state: Node) -> tuple[str, Node | None]:
        """What a branch does, by the operators in it: rows of other positions, a choice of experts, a gate, or none."""
        names = {op(n) for n in region}
        if any(map(causality.attends, region)):
            memory = self._memory(region, state)
            if memory is not None:
                return "cross_attention", memory
            masked = self._causal(region)
            return {True: "causal_self_attention", False: "self_attention", None: "unclassified"}[masked], None
        if "topk" in names and not any(op(n) == "convolution" for n in region):
            return "moe", None
        if names & {"_softmax", "_safe_softmax"} or rows.mixes(self.graph, self.recording.constants, start, region):
            return "unclassified", None
        return ("gated_mlp" if any(_gates(n, set(region)) for n in region) else "mlp"), None

    def _memory(self, region: list[Node], state: Node) -> Node | None:
        """The encoder's output, where it goes into the branch by another way than through the state."""
        encoder = self.recording.hidden.get("encoder")
        if encoder is None or self.graph.precedes(state, encoder):
            return None
        aside = {a for n in region for a in n.all_input_nodes} - set(region) - {state}
        # Scores of an earlier cross-attention may join those of a self-attention, which is none for that.
        weights = {shape(n)[-2:] for n in region if causality.scores(n)}
        own = [a for a in aside if not self.graph.precedes(state, a) and shape(a)[-2:] not in weights]
        return encoder if any(a is encoder or self.graph.precedes(encoder, a) for a in own) else None

    def _causal(self, region: list[Node]) -> bool | None:
        """Whether the scores are masked so that a row sees no later one: the mask itself is computed and looked at.

        None where neither that nor weight on a later position is shown.
        """
        softmaxes = [n for n in region if causality.scores(n)]
        shown = causality.causal(self.graph, self.recording.constants, region, softmaxes)
        if shown is not None:
            return shown
        outside = {a for n in region for a in n.all_input_nodes} - set(region)
        for node in self.recording.nodes:
            square = shape(node)[-2:] == (LENGTH, LENGTH) and dtype(node) == torch.bool
            if square and any(self.graph.precedes(node, o) or node is o for o in outside):
                mask = self._mask(node)
                if (
                    mask is not None
                    and bool(mask.tril().eq(mask).all())
                    and bool(mask.diagonal(dim1=-2, dim2=-1).all())
                ):
                    return True
        return None

    def _softcap(self, region: list[Node]) -> float | None:
        for n in region:
            cap = softcap(n)
            if cap is not None:
                return cap[0]
        return None


def _gates(node: Node, region: set[Node]) -> bool:
    """A product of two projections of the branch's input."""
    if op(node) not in ("mul", "mul_"):
        return False
    left, right = operand(node, 0), operand(node, 1)
    if left is None or right is None or left not in region or right not in region:
        return False
    # x * sigmoid(x) multiplies one projection with itself.
    return shape(left) == shape(right) and _projections(left, region) != _projections(right, region)


def _projections(node: Node, region: set[Node]) -> set[Node]:
    """The projections, or parts of one, that an activation was computed from."""
    found: set[Node] = set()
    todo, seen = [node], {node}
    while todo:
        node = todo.pop()
        if op(node) in _PROJECTS:
            found.add(node)
            continue
        fresh = [a for a in node.all_input_nodes if a in region and a not in seen]
        seen |= {*fresh}
        todo += fresh
    return found


def softcap(node: Node) -> tuple[float, Node] | None:
    """(c, x) where a value is c * tanh(x / c)."""
    cap, inner = number(node, 1), operand(node, 0)
    if op(node) != "mul" or cap is None or inner is None or op(inner) != "tanh":
        return None
    divided = operand(inner)
    if divided is None or op(divided) != "div" or number(divided, 1) != cap:
        return None
    capped = operand(divided)
    return None if capped is None else (cap, capped)
