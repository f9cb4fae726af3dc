"""A branch whose output takes the place of the state: nothing adds the state back, and its factor is zero."""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import Node

from blockaudit.graph.flow import Flow, op, operand, peel
from blockaudit.graph.norms import Norm

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}


def state(graph: Flow, node: Node, is_sum: Callable[[Node], bool], norm: Callable[[Node], Norm | None]) -> Node | None:
    """The state that `node` replaces, where all of `node` is computed from it through a norm and two projections.

    It is the last residual sum before, or the embedded input where there is none.
    """
    table = next((n for n in graph.nodes if looks_up_tokens(n) and graph.precedes(n, node)), None)
    if table is None:
        return None
    narrow = [table, *graph.bottlenecks(table, node)[:-1]]
    for at in range(len(narrow) - 1, -1, -1):
        start = narrow[at]
        embedded = not _products(graph, table, start)
        if not (embedded or is_sum(start)):
            continue
        after = (norm(n) for n in narrow[at + 1 :])
        through = any(found is not None and peel(found.source) is peel(start) for found in after)
        if through and _products(graph, start, node) > 1:
            return start
        if not embedded:
            return None
    return None


def looks_up_tokens(node: Node) -> bool:
    """Whether a value is made of the tokens themselves, by a table."""
    indices = operand(node, 1)
    return op(node) == "embedding" and indices is not None and peel(indices).op == "placeholder"


def _products(graph: Flow, start: Node, end: Node) -> int:
    return sum(op(n) in _PRODUCTS for n in graph.between(start, end))
