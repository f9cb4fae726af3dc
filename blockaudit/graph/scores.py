"""Score routes between attentions (He et al., RealFormer, 2020): scores of earlier layers that join this layer's own.

The scores are the products that go into a softmax over positions. What those of earlier branches weigh in a later
softmax is replayed: as much as its own (a running sum), or all the same share (a running mean).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from blockaudit.graph.causality import attends, scores
from blockaudit.graph.flow import Flow, op, operand, peel, replay, shape

NONE, SUM, MEAN, OTHER = "none", "sum", "mean", "other"
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_FAILS = (RuntimeError, TypeError, ValueError, KeyError, IndexError, NotImplementedError)
_CLOSE = 1e-6
_MASKED = -1e3  # a constant that is this low masks


@dataclass(frozen=True)
class Attention:
    """A branch that weighs positions: what it computes between its input and its end. `name` is its family."""

    name: str
    start: Node
    region: tuple[Node, ...]


@dataclass(frozen=True)
class Route:
    """How scores of earlier branches join: `sum`, `mean`, `other`, or `none`; and what that was seen by."""

    form: str
    evidence: str = ""


@dataclass(frozen=True)
class _Scores:
    """The value that a softmax is of, what it is computed by, and the products it begins at: its branch's, others'."""

    value: Node
    made: tuple[Node, ...]
    own: tuple[Node, ...]
    strange: tuple[Node, ...]


def attention(graph: Flow, name: str, branch: Any, shortcut: Node) -> Attention:
    """The region of a branch of the stream."""
    start = branch.norm_in.output if branch.norm_in else shortcut
    end = peel(branch.norm_out.source if branch.norm_out else branch.core)
    return Attention(name, start, tuple(graph.between(start, end)))


def routes(reader: Reader, branches: Iterable[Attention]) -> dict[str, Route]:
    """The score route of every family of attentions; `branches` are in order of execution.

    A family in which nothing weighs positions is left out.
    """
    found: dict[str, list[Route]] = {}
    for branch in branches:
        if any(attends(n) for n in branch.region):
            found.setdefault(branch.name, []).append(reader.route(branch))
    return {name: _one(each) for name, each in found.items()}


def _one(each: Sequence[Route]) -> Route:
    """A route's first branch has nothing to add to its own; all others must do the same."""
    joined = [r for r in each if r.form != NONE]
    if not joined:
        return Route(NONE)
    every = each[0].form == NONE and len(joined) == len(each) - 1
    note = "" if every else f"; in {len(joined)} of {len(each)} branches"
    alike = every and len({r.form for r in joined}) == 1
    return Route(joined[0].form if alike else OTHER, joined[0].evidence + note)


class Reader:
    """Follows score products through the stacks of one recording."""

    def __init__(self, graph: Flow, constants: Mapping[str, torch.Tensor]) -> None:
        self.graph, self.constants = graph, constants
        self.families: dict[Node, str] = {}  # score products of the branches so far
        self.products: dict[str, list[Node]] = {}
        self.starts: list[Node] = []
        self.first: dict[str, float | None] = {}  # what a family's first branch multiplies its own product by

    def route(self, branch: Attention) -> Route:
        """The scores that join those of one branch, which comes after all that were asked for before."""
        found = [_scores(self.graph, branch, value) for value in _softened(branch)]
        each = [r for s in found if (r := self._joined(branch.name, s)) is not None]
        own = [p for s in found for p in s.own]
        self.starts.append(branch.start)
        self.families |= dict.fromkeys(own, branch.name)
        if branch.name not in self.first:
            self.first[branch.name] = self._gain(found[0], own[0]) if len(own) == len(found) == 1 else None
        self.products.setdefault(branch.name, []).extend(own)
        return next((r for r in each if r.form == OTHER), each[0]) if each else Route(NONE)

    def _joined(self, family: str, found: _Scores) -> Route | None:
        """The route into one softmax; None where no scores of earlier branches come in."""
        earlier = [p for p in found.strange if any(self.graph.precedes(s, p) for s in self.starts)]
        joined = [p for p in earlier if self._moves(found, p)]
        if not joined:
            return None
        names = ", ".join(p.name for p in joined)
        families = {self.families.get(p, "") for p in joined}
        if families != {family}:
            whose = f", scores of {', '.join(sorted(families))}" if all(families) else " of earlier layers"
            return Route(OTHER, f"{found.value.name} is made of {names} too{whose}")
        sizes = "x".join(str(n) for n in shape(found.value))
        place = "before" if self._carries_mask(found) else "after"
        seen = f"{found.value.name} is made of {names} too, [{sizes}] of earlier layers; masked {place} the residual"
        return Route(self._form(family, found, joined), seen)

    def _form(self, family: str, found: _Scores, joined: list[Node]) -> str:
        first, before = self.first[family], self.products[family]
        if first is None or len(found.own) != 1 or joined != before:
            return OTHER
        gains = [self._gain(found, p) for p in (*joined, *found.own)]
        for form, wanted in ((SUM, first), (MEAN, first / len(gains))):
            if all(g is not None and abs(g - wanted) <= _CLOSE * abs(wanted) for g in gains):
                return form
        return OTHER

    def _moves(self, found: _Scores, product: Node) -> bool:
        """Whether scores change with a product as scores do, and not as a mask that is chosen by it."""
        change = self._change(found, product)
        return change is not None and bool((change.ne(0) & change.abs().lt(-_MASKED)).all())

    def _gain(self, found: _Scores, product: Node) -> float | None:
        """The one number by which a product goes into the scores, where no mask takes it away: at a row's own place."""
        change = self._change(found, product)
        if change is None or _random(product).numel() != found.value.meta["val"].numel():
            return None
        ratio = change / _random(product).reshape(shape(found.value)).diagonal(dim1=-2, dim2=-1)
        gain = float(ratio.reshape(-1)[0])
        return gain if gain and bool((ratio - gain).abs().max() <= _CLOSE * abs(gain)) else None

    def _change(self, found: _Scores, product: Node) -> torch.Tensor | None:
        still, moved = self._values(found, {}), self._values(found, {product: _random(product)})
        if still is None or moved is None:
            return None
        return (moved[found.value] - still[found.value]).diagonal(dim1=-2, dim2=-1)

    def _carries_mask(self, found: _Scores) -> bool:
        """Whether what comes from earlier layers is masked already."""
        inside = {u for u in found.made if any(self.graph.precedes(p, u) for p in found.own)}
        sources = {a for n in inside for a in n.all_input_nodes if a not in inside and a in found.made}
        crossing = [n for n in sources if any(self.graph.precedes(p, n) for p in found.strange)]
        values = self._values(found, {})
        return values is not None and any(bool(values[n].lt(_MASKED).any()) for n in crossing)

    def _values(self, found: _Scores, given: Mapping[Node, torch.Tensor]) -> dict[Node, Any] | None:
        """Scores replayed with the products that are given and zero for the others, on tokens that are all valid."""
        known: dict[Node, torch.Tensor] = {
            p: given.get(p, torch.zeros(shape(p), dtype=torch.float64)) for p in (*found.own, *found.strange)
        }
        for node in found.made:
            if node.op == "placeholder":
                known[node] = torch.ones(shape(node), dtype=torch.long)
            elif node.op == "get_attr":
                known[node] = self.constants.get(str(node.target), _random(node))
        try:
            return replay(found.made, known)
        except _FAILS:
            return None


def _random(node: Node) -> torch.Tensor:
    return torch.randn(shape(node), generator=torch.Generator().manual_seed(25), dtype=torch.float64)


def _softened(branch: Attention) -> list[Node]:
    """The values that a branch's softmaxes are of; of a fused attention, what is added to its scores."""
    found = [operand(n) if scores(n) else _mask(n) for n in branch.region if attends(n)]
    return [n for n in found if n is not None]


def _mask(node: Node) -> Node | None:
    given = next((node.kwargs[k] for k in ("attn_mask", "attn_bias") if k in node.kwargs), None)
    if given is None and len(node.all_input_nodes) > 3:
        given = node.all_input_nodes[3]
    return given if isinstance(given, Node) else None


def _scores(graph: Flow, branch: Attention, value: Node) -> _Scores:
    inside = set(branch.region)
    made: set[Node] = set()
    own: set[Node] = set()
    strange: set[Node] = set()
    todo = [value]
    while todo:
        node = todo.pop()
        if node in made | own | strange:
            continue
        if node is branch.start or (op(node) in _PRODUCTS and graph.is_data(node)):
            (own if node in inside or node is branch.start else strange).add(node)
        else:
            made.add(node)
            todo += node.all_input_nodes
    return _Scores(value, *(tuple(sorted(s, key=graph.index.__getitem__)) for s in (made, own, strange)))
