"""Whether an attention looks at later positions: its masking is replayed on scores of our choosing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from blockaudit.graph.flow import Flow, op, replay, shape
from blockaudit.graph.record import BATCH, LENGTH, MEMORY

_QUERIES = ((LENGTH,), (MEMORY,), (BATCH * LENGTH,))
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
# A weight on a later position that is below this may be one that a finite mask was to take away.
_LEAST = 1e-12
_FAILS = (RuntimeError, TypeError, ValueError, KeyError, IndexError, NotImplementedError)


def attends(node: Node) -> bool:
    """Whether an operator weighs positions: a fused attention, or a softmax over positions."""
    fused = op(node).startswith("_scaled_dot_product")
    # Axes in another order make one that weighs examples, or heads.
    return shape(node.all_input_nodes[0])[-2:-1] in _QUERIES if fused else scores(node)


def scores(node: Node) -> bool:
    """A softmax over positions, and over a sink beside them where there is one (a router's is over experts)."""
    sizes = ((LENGTH, LENGTH), (LENGTH, LENGTH + 1), (LENGTH, MEMORY))
    return op(node) in ("_softmax", "_safe_softmax") and len(shape(node)) >= 3 and shape(node)[-2:] in sizes


def causal(
    graph: Flow, constants: Mapping[str, torch.Tensor], region: Sequence[Node], softmaxes: Sequence[Node]
) -> bool | None:
    """Whether no weight of a branch lies on a later position; None where that is not shown either way.

    softmaxes: those over positions in `region`, beside which there may be fused attentions.
    """
    found = [_fused(graph, constants, n) for n in region if attends(n) and not scores(n)]
    for weights in softmaxes:
        used = _applied(graph, region, weights)
        found += [_of_weights(graph, constants, n) for n in used]
        if not used:
            # What is done to these weights afterwards is not followed: it can only take more of them away.
            found.append(_of_weights(graph, constants, weights) or None)
    if False in found:
        return False
    return True if found and all(found) else None


def _applied(graph: Flow, region: Sequence[Node], weights: Node) -> list[Node]:
    """The weights as values are multiplied with them: a mask may be applied after the softmax."""
    after = [n for n in region if n is weights or graph.precedes(weights, n)]
    products = {n for n in after if op(n) in _PRODUCTS}
    return [
        n
        for n in after
        if n not in products
        and shape(n)[-2:] == shape(weights)[-2:]
        and any(u in products for u in n.users)
        and not any(graph.precedes(p, n) for p in products)
    ]


def _of_weights(graph: Flow, constants: Mapping[str, torch.Tensor], weights: Node) -> bool | None:
    replayed = _replayed(graph, constants, weights)
    return None if replayed is None else _shown(*replayed)


def _fused(graph: Flow, constants: Mapping[str, torch.Tensor], node: Node) -> bool | None:
    """The same of an attention that is one operator with a mask, or a flag, among its arguments."""
    if _argument(node, "is_causal"):
        return True
    given = _argument(node, "attn_mask", "attn_bias")
    if not isinstance(given, Node):
        return False
    replayed = _replayed(graph, constants, given)
    if replayed is None:
        return None
    mask, guessed = replayed
    queries, keys = (shape(n)[-2] for n in node.all_input_nodes[:2])
    scores = torch.zeros(*mask.shape[:-2], queries, keys, dtype=torch.float64)
    scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return _shown(scores.softmax(-1), guessed)


def _argument(node: Node, *names: str) -> Any:
    target: Any = node.target
    for i, argument in enumerate(target._schema.arguments):
        if argument.name in names:
            return node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
    return None


def _replayed(graph: Flow, constants: Mapping[str, torch.Tensor], end: Node) -> tuple[torch.Tensor, bool] | None:
    """(a value made of random scores, valid tokens and known constants, whether a stored mask had to be guessed)."""
    generator = torch.Generator().manual_seed(22)
    known: dict[Node, torch.Tensor] = {}
    made: set[Node] = set()
    guessed = False
    todo = [end]
    while todo:
        node = todo.pop()
        if node in made or node in known:
            continue
        if node.op == "placeholder":
            known[node] = torch.ones(shape(node), dtype=torch.long)
        elif op(node) in _PRODUCTS and graph.is_data(node):
            known[node] = torch.randn(shape(node), generator=generator, dtype=torch.float64)
        elif node.op == "get_attr" and str(node.target) in constants:
            known[node] = constants[str(node.target)]
        elif node.op == "get_attr":
            known[node] = torch.randn(shape(node), generator=generator, dtype=torch.float64)
            guessed = guessed or _may_mask(node)
        else:
            made.add(node)
            todo += node.all_input_nodes
    try:
        return replay(sorted(made, key=graph.index.__getitem__), known)[end], guessed
    except _FAILS:
        return None


def _may_mask(node: Node) -> bool:
    """Whether a stored value that is not known may be a mask: a buffer, or a frozen square of positions."""
    value = getattr(node.graph.owning_module, str(node.target))
    sizes = shape(node)
    square = len(sizes) > 1 and sizes[-1] == sizes[-2]
    return not isinstance(value, torch.nn.Parameter) or (square and not value.requires_grad)


def _shown(weights: torch.Tensor, guessed: bool) -> bool | None:
    seen = weights[..., : weights.shape[-2]]  # a sink lies behind the last position
    if bool(weights.isnan().any()) or not bool(seen.gt(0).any()):
        return None
    later = seen.triu(1)
    if bool(later.eq(0).all()):
        return True
    return None if guessed or bool(later.le(_LEAST).all()) else False
