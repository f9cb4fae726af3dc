"""Joins of the stream that are no sum of equals: an update that is broadcast over the state, or laid beside it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from torch.fx import Node

from blockaudit.graph.flow import Flow, op, peel, shape
from blockaudit.graph.record import Recording
from blockaudit.graph.replaced import looks_up_tokens

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution"}


def misshapen(recording: Recording) -> tuple[str, ...]:
    """Every join on the only way from the tokens to a result whose update has another shape than the state.

    An update is what is computed from the state by a matrix product; both meet in one sum or one concatenation.
    """
    graph = Flow(recording.nodes)
    ends = [n for n in (*recording.hidden.values(), recording.logits) if n is not None and n in graph.index]
    return tuple(dict.fromkeys(said for end in ends for said in _before(graph, end)))


def _before(graph: Flow, end: Node) -> Iterator[str]:
    table = next((n for n in graph.nodes if looks_up_tokens(n) and graph.precedes(n, end)), None)
    for node in graph.bottlenecks(table, end) if table is not None else ():
        parts = [peel(p) for p in _parts(node) if graph.is_data(p)]
        for state in parts:
            for update in parts:
                if _updates(graph, state, update) and prod(shape(node)) > min(prod(shape(p)) for p in (state, update)):
                    yield _said(node, state, update)


def _parts(node: Node) -> list[Node]:
    if op(node) == "cat":
        parts: Any = node.args[0]
        along = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        return list(parts) if along in (-1, len(shape(node)) - 1) else []
    return list(node.all_input_nodes) if op(node) in ("add", "add_") else []


def _updates(graph: Flow, state: Node, update: Node) -> bool:
    return graph.precedes(state, update) and any(op(n) in _PRODUCTS for n in graph.between(state, update))


def _said(node: Node, state: Node, update: Node) -> str:
    what = "concatenates" if op(node) == "cat" else "broadcasts"
    return f"{node.name} {what} an update of {_sizes(update)} and a state of {_sizes(state)} to {_sizes(node)}"


def _sizes(node: Node) -> str:
    return f"[{','.join(str(n) for n in shape(node))}]"
