"""Random masks in a recorded graph: which values they drop, how often, as one what, and with which scaling.

Operators propose, replay decides: a mask that keeps all must give the value times one number, one that drops all zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.fx import Node

from blockaudit.graph.flow import MOVES, Flow, number, op, operand, replay, shape
from blockaudit.graph.record import BATCH, LENGTH, Recording

_DRAWS = {"bernoulli", "bernoulli_", "rand", "rand_like", "uniform", "uniform_"}
_FUSED = {"native_dropout"}
# Other randomness: it is no mask, and is named as what it is.
_NOISE = {"randn", "randn_like", "normal", "normal_", "exponential", "exponential_", "randint", "multinomial"}
# Made of a value, but of its shape alone.
_SHAPED = {"empty_like", "zeros_like", "ones_like", "full_like", "new_empty", "new_zeros", "new_ones", "new_full"}
_CLOSE = 1e-6
# What is dropped as one, by the axes of a [B,S,D] or a [B,D,S] value that have draws of their own.
_OF_STATES: dict[tuple[int, ...], str] = {(0,): "example", (0, 1): "row", (0, 2): "channel"}
_TURNED: dict[tuple[int, ...], str] = {(0,): "example", (0, 1): "channel", (0, 2): "row"}


@dataclass(frozen=True)
class Drop:
    """One value dropped: `node` is the result, `source` the value, `mask` the shape of what is drawn.

    p is the probability of dropping; `inverted` whether what is kept is divided by 1 - p.
    """

    node: Node
    source: Node
    mask: tuple[int, ...]
    p: float
    inverted: bool

    @property
    def granularity(self) -> str:
        """What is dropped as one, in the manifest's words; else which axes have draws of their own (`[B,1,S,S]`)."""
        whole, drawn = shape(self.node), self.mask
        drawn = (1,) * (len(whole) - len(drawn)) + drawn
        if drawn == whole:
            return "element"
        own = tuple(i for i, n in enumerate(drawn) if n > 1)
        if not own:
            return "layer"
        if whole[:2] == (BATCH, LENGTH) and len(whole) == 3:
            return _OF_STATES.get(own) or _axes(drawn)
        if whole[:1] + whole[2:] == (BATCH, LENGTH):
            return _TURNED.get(own) or _axes(drawn)
        if whole[:1] == (BATCH * LENGTH,) and own == (0,):
            return "row"
        return "example" if own == (0,) and whole[0] == BATCH else _axes(drawn)


def _axes(drawn: tuple[int, ...]) -> str:
    names = {1: "1", BATCH: "B", LENGTH: "S"}
    return f"[{','.join(names.get(n, 'D') for n in drawn)}]"


def find(recording: Recording) -> tuple[list[Drop], list[Node]]:
    """The dropped values of a graph in order of execution, and the random operators that are no such mask."""
    drops: list[Drop] = []
    odd: list[Node] = []
    if not any(op(n) in _DRAWS | _FUSED | _NOISE for n in recording.nodes):
        return drops, odd
    graph = Flow(recording.nodes)
    for node in recording.nodes:
        if op(node) in _NOISE:
            odd.append(node)
        source = operand(node)
        if op(node) in _FUSED and source is not None and graph.is_data(source):
            drops += _fused(node)
        for draw in [node] if op(node) in _DRAWS else _of_ones(node) if op(node) in _FUSED else []:
            made, joins = _reach(graph, draw)
            found = [_drop(recording, graph, draw, made, join) for join in joins]
            drops += [d for d in found if d is not None]
            odd += [node] * any(d is None for d in found)
    return sorted(drops, key=lambda d: graph.index[d.node]), odd


def still(recording: Recording) -> tuple[list[Drop], list[Node]]:
    """The same, with every dropped value rewritten as the value itself: what is left reads as an eval graph."""
    drops, odd = find(recording)
    for drop in drops:
        drop.node.target = torch.ops.aten.clone.default
        drop.node.args, drop.node.kwargs = (drop.source,), {}
    return drops, odd


def _fused(node: Node) -> Iterator[Drop]:
    source, p = operand(node), number(node, 1)
    if source is not None and p is not None:
        yield from (Drop(u, source, shape(u), p, True) for u in node.users if op(u) == "getitem" and u.args[1] == 0)


def _of_ones(node: Node) -> list[Node]:
    """A mask that is itself a dropout of ones."""
    source = operand(node)
    ones = source is not None and op(source) in ("ones", "new_ones", "ones_like")
    return [u for u in node.users if op(u) == "getitem" and u.args[1] == 0] if ones else []


def _reach(graph: Flow, draw: Node) -> tuple[list[Node], list[Node]]:
    """(what is made of the draw alone, where it meets a value that the tokens make), each in order."""
    made: dict[Node, None] = {draw: None}
    joins: list[Node] = []
    for node in graph.nodes[graph.index[draw] + 1 :]:
        if any(a in made for a in node.all_input_nodes) and node.op == "call_function":
            if _met(graph, node, made):
                joins.append(node)
            elif op(node) not in _SHAPED:
                made[node] = None
    return list(made), joins


def _met(graph: Flow, node: Node, made: dict[Node, None]) -> list[Node]:
    return [a for a in node.all_input_nodes if a not in made and op(a) not in _SHAPED and graph.is_data(a)]


def _drop(recording: Recording, graph: Flow, draw: Node, made: list[Node], join: Node) -> Drop | None:
    """The dropped value of one join, where replay confirms that it is one."""
    met = _met(graph, join, dict.fromkeys(made))
    if len(met) != 1 or shape(met[0]) != shape(join):
        return None
    source = met[0]
    value = torch.randn(shape(source), generator=torch.Generator().manual_seed(31), dtype=torch.float64)
    region = [*made, join]
    inputs = {a for n in region for a in n.all_input_nodes} - set(region) - set(draw.all_input_nodes) - {source}
    known: dict[Node, Any] = {
        n: recording.constants[str(n.target)] for n in inputs if str(n.target) in recording.constants
    }
    known |= {n: torch.zeros(shape(n), dtype=torch.float64) for n in inputs if op(n) in _SHAPED}

    def factor(drawn: float) -> float | None:
        """The number that the value is multiplied by where every draw is this; None where it is no number."""
        draws = torch.full(shape(draw), drawn, dtype=torch.float64)
        result = replay(region, {**known, source: value, draw: draws})[join]
        ratio = (result / value).reshape(-1)
        return float(ratio[0]) if bool((ratio - ratio[0]).abs().max() <= _CLOSE) else None

    try:
        probability = _probability(draw, factor)
    except (RuntimeError, TypeError, KeyError, ValueError, IndexError):
        return None
    if probability is None or not 0 < probability[0] < 1:
        return None
    p, kept = probability
    around = _around(source, join, p)
    if abs(kept * around * (1 - p) - 1) <= 1e-4:
        return Drop(join, source, shape(draw), p, True)
    return Drop(join, source, shape(draw), p, False) if abs(kept - 1) <= 1e-4 and around == 1 else None


def _probability(draw: Node, factor: Any) -> tuple[float, float] | None:
    """(p, the factor on what is kept): one side of the draw drops, the other keeps."""
    dropout = operand(draw) if op(draw) == "getitem" else None
    if dropout is not None:
        own = number(dropout, 1) or 0.0
        kept = factor(1 / (1 - own))
        return None if kept is None or factor(0.0) != 0 else (own, kept)
    low, high = factor(0.0), factor(1.0 - 1e-12 if "bernoulli" not in op(draw) else 1.0)
    if low is None or high is None or (low == 0) == (high == 0):
        return None
    kept = cast("float", high if low == 0 else low)
    if "bernoulli" in op(draw):
        own = draw.args[1] if len(draw.args) > 1 else draw.kwargs.get("p", 0.5)
        if not isinstance(own, int | float):
            return None
        return (round(1 - own, 9) if low == 0 else own), kept
    if op(draw).startswith("uniform") and any(number(draw, i) not in (None, b) for i, b in ((1, 0.0), (2, 1.0))):
        return None
    below, above = 0.0, 1.0
    for _ in range(40):
        middle = (below + above) / 2
        below, above = (middle, above) if (factor(middle) == 0) == (low == 0) else (below, middle)
    edge = round((below + above) / 2, 9)
    return (edge if low == 0 else round(1 - edge, 9)), kept


def _around(source: Node, join: Node, p: float) -> float:
    """1 / (1 - p) where a constant right before or right after the mask scales by it, else one."""
    users = [u for u in join.users if op(u) not in MOVES]
    for node in (source, *users[:1]):
        constant = number(node, 1)
        if constant and op(node) in ("mul", "div", "mul_", "div_"):
            scale = constant if "mul" in op(node) else 1 / constant
            if abs(scale * (1 - p) - 1) <= 1e-4:
                return scale
    return 1.0
