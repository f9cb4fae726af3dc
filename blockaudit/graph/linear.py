"""A proposed residual sum, replayed: it must be the factors times its terms and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.fx import Node

from blockaudit.graph.flow import Flow, replay, shape, structure

_CLOSE = 1e-9
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


def is_sum(
    graph: Flow, constants: Mapping[str, torch.Tensor], total: Node, terms: Sequence[tuple[Node, float | None]]
) -> bool:
    """Whether `total` is the sum of factor times value over `terms`.

    A factor of None is one that is learned: it must be the same for every row.
    """
    cuts = {t for t, _ in terms}
    region = _region(graph, total, cuts)
    if region is None or len(cuts) != len(terms):
        return False
    known = {n: constants[str(n.target)] for n in region if n.op == "get_attr" and str(n.target) in constants}
    ordered = [*(t for t, _ in terms), *region]
    key = ("sum", structure(ordered, cuts, known), tuple(f for _, f in terms))
    if key not in graph.found:
        graph.found[key] = _holds(region, known, total, terms)
    return graph.found[key]


def _holds(
    region: list[Node], known: Mapping[Node, torch.Tensor], total: Node, terms: Sequence[tuple[Node, float | None]]
) -> bool:
    generator = torch.Generator().manual_seed(21)

    def fresh(node: Node) -> torch.Tensor:
        return torch.randn(shape(node), generator=generator, dtype=torch.float64)

    cuts = {t: fresh(t) for t, _ in terms}
    given = {n: known[n].double() if n in known else fresh(n) for n in region if n.op == "get_attr"}
    try:
        result = replay(region, {**given, **cuts})[total]
        expected = torch.zeros_like(result)
        for term, factor in terms:
            gain = _gain(region, given, cuts, total, term) if factor is None else factor
            if gain is None:
                return False
            expected = expected + gain * cuts[term].reshape(result.shape)
    except (RuntimeError, TypeError, ValueError, KeyError):
        return False
    return bool((result - expected).abs().max() <= _CLOSE * (1 + expected.abs().max()))


def granularity(graph: Flow, total: Node, terms: Sequence[Node], term: Node) -> str | None:
    """`scalar` or `vector` (one number a channel): what a learned factor on one term of a sum is."""
    generator = torch.Generator().manual_seed(24)
    region = _region(graph, total, set(terms))
    if region is None:
        return None
    cuts = {t: torch.zeros(shape(t), dtype=torch.float64) for t in terms}
    given = {n: torch.randn(shape(n), generator=generator, dtype=torch.float64) for n in region if n.op == "get_attr"}
    try:
        gain = _gain(region, given, cuts, total, term)
    except (RuntimeError, TypeError, ValueError, KeyError):
        return None
    if gain is None:
        return None
    return "scalar" if bool(torch.allclose(gain, gain[:1].expand_as(gain), rtol=_CLOSE)) else "vector"


def is_head(
    graph: Flow, constants: Mapping[str, torch.Tensor], logits: Node, projected: Node, factor: float, cap: float | None
) -> bool:
    """Whether each logit is a projected value times `factor`, capped at `cap`, beside what no token reaches."""
    region = _region(graph, logits, {projected})
    if region is None:
        return False
    generator = torch.Generator().manual_seed(25)
    value = torch.randn(shape(projected), generator=generator, dtype=torch.float64) * (cap or 1.0)
    fixed = {n: constants[str(n.target)] for n in region if n.op == "get_attr" and str(n.target) in constants}
    sides = {n: torch.zeros(shape(n), dtype=torch.float64) for n in region if n.op == "get_attr" and n not in fixed}
    try:
        known = {**sides, **{n: v.double() if v.is_floating_point() else v for n, v in fixed.items()}}
        still = replay(region, {**known, projected: torch.zeros_like(value)})[logits]
        found = (replay(region, {**known, projected: value})[logits] - still).reshape(-1)
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError, NotImplementedError):
        return False
    expected = (value * factor if cap is None else cap * torch.tanh(value * factor / cap)).reshape(-1)
    if found.numel() != expected.numel():
        # A module may give the logits of some rows alone: each is then one of those that are due.
        due = expected.sort().values
        above = torch.searchsorted(due, found.double()).clamp(1, due.numel() - 1)
        lower, upper = due[above - 1], due[above]
        expected = torch.where(found - lower < upper - found, lower, upper)
    return bool(found.numel() and (found - expected).abs().max() <= _CLOSE * (1 + expected.abs().max()))


def _region(graph: Flow, total: Node, cuts: set[Node]) -> list[Node] | None:
    """What makes `total` of the cuts and of parameters; None where tokens reach it by another way."""
    found: set[Node] = set()
    todo = [total]
    while todo:
        node = todo.pop()
        if node in cuts or node in found:
            continue
        if node.op == "placeholder":
            return None
        found.add(node)
        todo += node.all_input_nodes
    return sorted(found, key=graph.index.__getitem__)


def _gain(
    region: list[Node],
    given: Mapping[Node, torch.Tensor],
    cuts: Mapping[Node, torch.Tensor],
    total: Node,
    term: Node,
) -> torch.Tensor | None:
    """The derivative of `total` along a term, where it is one number a channel."""
    still = {n: torch.zeros_like(v) for n, v in cuts.items()}
    ones = {**still, term: torch.ones_like(cuts[term])}
    gain = replay(region, {**given, **ones})[total] - replay(region, {**given, **still})[total]
    rows = gain.reshape(-1, gain.shape[-1])
    return rows[0] if torch.allclose(rows, rows[:1].expand_as(rows), rtol=_CLOSE, atol=_CLOSE) else None
