"""A reading put to the proof: the stack is built again from our equation and must give what the model gives.

The norms and the adds are ours, written here from their papers; a branch is an opaque function of the state that the
reading says it reads. Whatever does not come from the stream (positions, masks, the other stack) is taken from the run.
Everything runs in FP64 on fresh tokens, so that an epsilon that is ten times too large shows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from blockaudit.graph import live
from blockaudit.graph.flow import MOVES, Flow, op, operand, peel, shape
from blockaudit.graph.norms import Norm
from blockaudit.graph.record import Recording
from blockaudit.graph.stream import Add, Branch, Stream

# Largest difference that is round-off of FP64 (and of an epsilon read to six digits), relative to the state.
CLOSE = 1e-7
_REDUCES = {"mean", "var", "std", "var_mean", "rsqrt", "native_layer_norm", "_fused_rms_norm", "linalg_vector_norm"}
_NUMBERED = re.compile(r"\.\d+\.")
_LAYOUT = MOVES | {"_to_copy", "slice", "transpose", "permute"}
_MIXES = {"_softmax", "_safe_softmax", "cumsum", "cumprod", "topk"}


class Contradiction(Exception):
    """The equation does not give what the model gives; the message says where."""


@dataclass(frozen=True)
class Verdict:
    """What became of one stack: `confirmed`, `contradicted` or `not read`; why, and the largest relative error.

    `first` is the number of the first add that differs, `state` the rebuilt value that leaves the stack.
    """

    kind: str
    reason: str = ""
    first: int | None = None
    error: float = 0.0
    state: torch.Tensor | None = None
    oddities: tuple[str, ...] = ()


def rebuild(recording: Recording, stream: Stream, end: Node, run: Mapping[Node, Any]) -> Verdict:
    """Build one stack from `stream` and hold it against `run`, the values that the recorded operators gave."""
    missing = _incomplete(recording, stream, end)
    if missing:
        return Verdict("not read", missing)
    builder = _Builder(recording, stream, run)
    try:
        state = builder.stack(end)
    except Contradiction as error:
        return Verdict("contradicted", str(error), builder.at, builder.error, None, tuple(builder.oddities))
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError, NotImplementedError) as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return Verdict("contradicted", reason, builder.at, builder.error, None, tuple(builder.oddities))
    return Verdict("confirmed", "", None, builder.error, state, tuple(dict.fromkeys(builder.oddities)))


def _incomplete(recording: Recording, stream: Stream, end: Node) -> str:
    """Why a stream is no reading of the whole stack: it must begin before the first layer's weights."""
    if not stream.adds:
        return "no residual add was found"
    graph = Flow(recording.nodes)
    before = [n for n in recording.nodes if n is stream.start or graph.precedes(n, stream.start)]
    named = [n for n in before if n.op == "get_attr" and not any(op(u) == "embedding" for u in n.users)]
    layer = next((n for n in named if _NUMBERED.search(recording.names[str(n.target)])), None)
    if layer is not None:
        return f"the stream was followed back only to where {recording.names[str(layer.target)]} is in it"
    mixing = next((n for n in before if op(n) in _MIXES and graph.is_data(n) and len(shape(n)) > 2), None)
    if mixing is not None:
        return f"the stream was followed back only to where {op(mixing)} is in it"
    return "" if graph.precedes(stream.start, end) else "the start does not go into the end"


class _Builder:
    def __init__(self, recording: Recording, stream: Stream, run: Mapping[Node, Any]) -> None:
        self.recording, self.stream, self.seen = recording, stream, run
        self.graph = Flow(recording.nodes)
        self.at: int | None = None
        self.error = 0.0
        self.oddities: list[str] = []

    def stack(self, end: Node) -> torch.Tensor:
        """The value that leaves the stack, every value on the way held against the run."""
        stream = self.stream
        state: torch.Tensor = self.seen[stream.start]
        self._embedding_scale()
        reached = stream.start
        if stream.embed_norm is not None:
            state, reached = self._norm(stream.embed_norm, state, reached), stream.embed_norm.output
        for i, add in enumerate(stream.adds):
            self.at = i
            if not stream.normalised_shortcut and add.shortcut is not reached:
                state = self._carried(state, reached, add.shortcut)
            state = self._add(add, state)
            reached = add.norm_post.output if add.norm_post else add.total
        self.at = None
        if stream.final_norm is not None:
            state, reached = self._norm(stream.final_norm, state, reached), stream.final_norm.output
        return self._tail(state, reached, end)

    def _add(self, add: Add, state: torch.Tensor) -> torch.Tensor:
        shortcut = state
        if self.stream.normalised_shortcut:
            norm = add.branches[0].norm_in
            if norm is None:
                raise Contradiction("a normalised shortcut without a norm")
            shortcut = self._norm(norm, state, add.shortcut)
        # A state that a branch takes the place of may have other rows.
        total = torch.zeros_like(self.seen[add.total])
        if add.shortcut_scale != 0:
            total = (shortcut * self._shortcut_gain(add)).reshape(total.shape)
        for branch in add.branches:
            total = total + self._branch(add, branch, state).reshape(total.shape)
        self._compare(total, add.total, "the sum")
        if add.norm_post is not None:
            total = self._norm(add.norm_post, total, add.total)
        return total

    def _shortcut_gain(self, add: Add) -> float | torch.Tensor:
        """The factor on the shortcut; where it is learned, what the weights make of it."""
        if add.shortcut_scale is not None:
            return add.shortcut_scale
        self.oddities.append("a learned factor on the shortcut")
        region = self.graph.between(add.shortcut, add.total)
        updates = [b.update for b in add.branches]
        region = [n for n in region if n not in updates and not any(self.graph.precedes(n, u) for u in updates)]
        known = {a: self.seen[a] for n in region for a in n.all_input_nodes if a not in region}
        still = {u: torch.zeros_like(self.seen[u]) for u in updates}
        one = torch.ones_like(self.seen[add.shortcut])
        gain = live.replay(region, {**known, **still, add.shortcut: one})[add.total]
        rows = gain.reshape(-1, gain.shape[-1])
        if not torch.allclose(rows, rows[:1].expand_as(rows), rtol=1e-9, atol=1e-9):
            raise Contradiction("the factor on the shortcut is not one for all rows")
        return rows[0]

    def _branch(self, add: Add, branch: Branch, state: torch.Tensor) -> torch.Tensor:
        """The update of one branch: norms and factor ours, all between them opaque."""
        read = branch.origin or add.shortcut
        if branch.origin is not None:
            self.oddities.append("a branch reads an earlier state")
            state = self.seen[branch.origin]  # held against ours when it was summed
        start, value = read, state
        if branch.norm_in is not None:
            start, value = branch.norm_in.output, self._entered(branch, branch.norm_in, read, state)
        if branch.retracts:
            return self._retraction(add, branch, state, start, value)
        core = branch.core if branch.scale is not None else branch.update
        if branch.norm_out is None:
            return self._opaque(read, start, core, value) * _known(branch.scale)
        inner = self._opaque(read, start, branch.norm_out.source, value)
        after = self._norm(branch.norm_out, inner, branch.norm_out.source)
        if branch.scale is not None:
            if peel(core) is not peel(branch.norm_out.output):
                raise Contradiction("a branch does not end at its norm")
            return after * branch.scale
        return self._opaque(read, branch.norm_out.output, core, after)

    def _entered(self, branch: Branch, norm: Norm, read: Node, state: torch.Tensor) -> torch.Tensor:
        """The input norm of a branch; an earlier value that it reads beside the state is taken from the run."""
        if branch.beside is None:
            return self._norm(norm, state, read)
        self.oddities.append("a norm reads an earlier value beside the state")
        return self._normed(norm, self._opaque(read, read, norm.source, state))

    def _retraction(self, add: Add, branch: Branch, state: torch.Tensor, start: Node, value: torch.Tensor) -> Any:
        """Rate * (target - state): the target's norm is ours, the rate what the weights make of it."""
        target = self._opaque(add.shortcut, start, branch.norm_out.source if branch.norm_out else branch.core, value)
        if branch.norm_out is not None:
            target = self._norm(branch.norm_out, target, branch.norm_out.source)
        away = next(n for n in self.graph.between(branch.core, branch.update) if add.shortcut in n.all_input_nodes)
        difference = target.reshape(state.shape) - state
        return self._opaque(add.shortcut, away, branch.update, difference.reshape(self.seen[away].shape))

    def _opaque(self, state: Node, start: Node, end: Node, value: torch.Tensor) -> torch.Tensor:
        """What the recorded operators between two values give for a value of ours at the first."""
        if start is end:
            return value
        region = self.graph.between(start, end)
        if not region:
            raise Contradiction("a branch does not come from what it is said to read")
        outside = {a for n in region for a in n.all_input_nodes} - set(region) - {start}
        for node in outside:
            if start is not state and (node is state or self._on_the_way(state, node, start)):
                raise Contradiction("a branch reads the state past its norm")
            if self.graph.precedes(self.stream.start, node) or node is self.stream.start:
                self.oddities.append("a branch also reads an earlier value of the stack")
        known = {n: self.seen[n] for n in outside}
        return live.replay(region, {**known, start: value.reshape(self.seen[start].shape).contiguous()})[end]

    def _on_the_way(self, state: Node, node: Node, start: Node) -> bool:
        """Whether a value comes from the state itself, by no way through the norm."""
        return self.graph.precedes(state, node) and not self.graph.precedes(start, node)

    def _carried(self, state: torch.Tensor, reached: Node, to: Node) -> torch.Tensor:
        """A state in the layout in which it is read next; nothing but moves may lie between.

        Before the first add the embedding may also be projected, masked, or have positions added to it.
        """
        region = self.graph.between(reached, to)
        if not region:
            if peel(to) is not peel(reached):
                raise Contradiction(f"{op(to)} is read and does not come from {op(reached)}")
            return state.reshape(self.seen[to].shape)
        odd = [op(n) for n in region if op(n) not in _LAYOUT and not self._masks(n)]
        if odd and (self.at != 0 or any(o in _REDUCES for o in odd)):
            raise Contradiction(f"{odd[0]} lies between two adds")
        self.oddities += [f"before the first add: {', '.join(odd)}"] if odd else []
        return self._opaque(reached, reached, to, state)

    def _masks(self, node: Node) -> bool:
        """Whether an operator multiplies rows by a mask under which all are valid."""
        by = operand(node, 1)
        return op(node) == "mul" and by is not None and shape(by)[-1:] == (1,) and bool((self.seen[by] == 1).all())

    def _tail(self, state: torch.Tensor, reached: Node, end: Node) -> torch.Tensor:
        region = self.graph.between(reached, end)
        odd = [op(n) for n in region if op(n) not in _LAYOUT and not self._masks(n)]
        if any(o in _REDUCES for o in odd):
            raise Contradiction("a norm after the last one that was read")
        if odd:
            self.oddities.append(f"after the stack: {', '.join(odd)}")
        if region:
            state = self._opaque(reached, reached, end, state)
        elif peel(reached) is not peel(end):
            raise Contradiction("the last value read does not leave the stack")
        self._compare(state, end, "the value that leaves the stack")
        return state.reshape(self.seen[end].shape)

    def _embedding_scale(self) -> None:
        """The embedding of the tokens, moved by a little: the start must move by the factor times as much."""
        scale, start = self.stream.embedding_scale, self.stream.start
        for node in self.recording.nodes:
            indices = operand(node, 1)
            if op(node) != "embedding" or indices is None or peel(indices).op != "placeholder":
                continue
            region = self.graph.between(node, start)
            if scale is None or (not region and node is not start) or shape(node) != shape(start):
                continue
            moved = torch.randn(shape(node), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
            if node is start:
                got = moved
            else:
                known = {a: self.seen[a] for n in region for a in n.all_input_nodes}
                known = {a: v for a, v in known.items() if a not in region}
                got = live.replay(region, {**known, node: self.seen[node] + moved})[start] - self.seen[start]
            if not bool(((got - scale * moved).abs() <= 1e-6 * (1 + abs(scale))).all()):
                raise Contradiction(f"the embedding is not multiplied by {scale}")
            return

    # -- norms ------------------------------------------------------------------------------------------------------

    def _norm(self, norm: Norm, x: torch.Tensor, reached: Node) -> torch.Tensor:
        """The norm by its equation on our value of `reached`, held against the run."""
        return self._normed(norm, self._carried(x, reached, norm.source))

    def _normed(self, norm: Norm, x: torch.Tensor) -> torch.Tensor:
        weight, bias, alpha = self._parameters(norm)
        y = equation(norm, x, weight, bias, alpha)
        self._compare(y, norm.output, f"the norm {norm.weight or norm.family}")
        return y

    def _parameters(self, norm: Norm) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """(weight, bias, the scalar of a DyT) of a norm."""
        region = self.graph.between(norm.source, norm.output)
        sides = {a for n in region for a in n.all_input_nodes if not self.graph.is_data(a)}
        every = [
            n
            for n in self.recording.nodes
            if n.op == "get_attr"
            and str(n.target) not in self.recording.constants
            and any(n is s or self.graph.precedes(n, s) for s in sides)
        ]
        weight = next((n for n in every if norm.scale != "none" and self._label(n) == norm.weight), None)
        others = [n for n in every if n is not weight]
        scalars = [n for n in others if self.seen[n].numel() == 1] if norm.family == "dyt" else []
        others = [n for n in others if n not in scalars]
        if len(others) != int(norm.bias):
            raise Contradiction(f"{len(others)} parameters are left for the bias of {norm.weight}")
        return tuple(
            self.seen[n] if n is not None else None for n in (weight, *(others or [None]), *(scalars or [None]))
        )  # pyright: ignore[reportReturnType]

    def _label(self, node: Node) -> str:
        return self.recording.names.get(str(node.target), "")

    def _compare(self, ours: torch.Tensor, node: Node, what: str) -> None:
        theirs: torch.Tensor = self.seen[node]
        if ours.numel() != theirs.numel():
            raise Contradiction(f"{what} has another shape")
        error = float((ours.reshape(theirs.shape) - theirs).abs().max() / (theirs.abs().max() + 1e-30))
        self.error = max(self.error, error)
        if not error <= CLOSE:
            raise Contradiction(f"{what} differs by {error:.1e}")


def equation(
    norm: Norm, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, alpha: torch.Tensor | None
) -> torch.Tensor:
    """A norm as its paper defines it, over the last axis.

    LayerNorm (Ba et al. 2016), RMSNorm (Zhang and Sennrich 2019), ScaleNorm (Nguyen and Salazar 2019), DyT (Zhu et al.
    2025).
    """
    epsilon = norm.epsilon or 0.0
    if norm.family == "dyt":
        if alpha is None:
            raise Contradiction("a DyT without its scalar")
        y = torch.tanh(alpha * x)
    elif norm.family == "none":
        y = x
    elif norm.family == "scalenorm":
        y = x / (x.pow(2).sum(-1, keepdim=True) + epsilon).sqrt()
    elif norm.family in ("layernorm", "rmsnorm"):
        z = x - x.sum(-1, keepdim=True) / x.shape[-1] if norm.family == "layernorm" else x
        moment = z.pow(2).sum(-1, keepdim=True) / (x.shape[-1] - (norm.variance_correction or 0))
        y = z / (moment + epsilon).sqrt() if norm.epsilon_location == "inside" else z / (moment.sqrt() + epsilon)
    else:
        raise Contradiction(f"no equation for {norm.family}")
    if weight is not None:
        y = y * (weight + norm.scale_offset)
    return y if bias is None else y + bias


def _known(scale: float | None) -> float:
    """The factor of a branch; one that is learned stays in the opaque function."""
    return 1.0 if scale is None else scale
