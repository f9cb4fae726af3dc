"""What a reading of a stream leaves unexplained: where there is any doubt the answer is `unclassified`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

import torch
from torch.fx import Node

from blockaudit.graph.flow import MOVES, Flow, op, operand, peel, shape
from blockaudit.graph.linear import is_sum

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution"}
# Operators that a norm may be made of, and a projection, an activation or a sum is not.
_NORMALISE = {
    "rsqrt", "sqrt", "var", "std", "var_mean", "mean", "linalg_vector_norm", "norm", "native_layer_norm",
    "_fused_rms_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit", "cudnn_batch_norm", "_batch_norm_no_update", "batch_norm", "pow", "amax",
}  # fmt: skip
# What has a value's shape and none of its values.
_SHAPES = {"zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty"}
# What may stand between a branch's input and its first product.
_BEFORE = MOVES | {
    "_to_copy", "slice", "select", "split", "split_with_sizes", "chunk", "unbind", "getitem", "transpose", "permute",
    "t", "repeat", "index", "index_select", "stack",
}  # fmt: skip
_ELEMENTWISE = _NORMALISE | {"tanh"}


def of_add(graph: Flow, constants: Mapping[str, torch.Tensor], add: Any) -> Iterator[str]:
    """Doubts about one residual add and its branches."""
    terms = [(add.shortcut, add.shortcut_scale), *((b.update, b.factor) for b in add.branches)]
    name = add.total.name
    if shape(add.total)[-1:] != shape(add.shortcut)[-1:]:
        yield f"{name}: the state changes its width"
    if not is_sum(graph, constants, add.total, terms):
        yield f"{name}: replay does not confirm that this sum is a shortcut and its branches"
    if any(f is not None and not isfinite(f) for f in (add.shortcut_scale, *(b.scale for b in add.branches))):
        yield f"{name}: a term has a factor that is no finite number"
    for branch in add.branches:
        if branch.doubt:
            yield f"{branch.update.name}: whether this attention sees later positions is not shown: {branch.doubt}"
        start = branch.norm_in.output if branch.norm_in else branch.origin or add.shortcut
        region = graph.between(start, peel(branch.norm_out.source) if branch.norm_out else peel(branch.core))
        joined = _joined(graph, start, branch)
        found = _loose(graph, _carrying(start, region), joined, branch.kind == "unclassified")
        if found is not None:
            yield f"{found.name}: {op(found)} beside the branch fits no norm that replay confirms"


def of_start(graph: Flow, start: Node) -> Iterator[str]:
    """Doubts about what is taken for the embedded input: a layer that was not read would be part of it."""
    made = [n for n in graph.nodes if graph.is_data(n) and (n is start or graph.precedes(n, start))]
    widths = [n for n in made if op(n) == "embedding"]
    after = [n for n in made if any(graph.precedes(e, n) for e in widths)]
    products = [n for n in after if op(n) in _PRODUCTS]
    if len(products) > 1 or any(op(n) in ("_softmax", "_safe_softmax", "topk") for n in after):
        yield f"{start.name}: what is before the first sum is no embedding"


def _joined(graph: Flow, start: Node, branch: Any) -> set[Node]:
    """Inner norms that read the state joined to an earlier value of the stack: they are the branch's own."""
    found: set[Node] = set()
    for norm in branch.inner:
        cat = peel(norm.source)
        parts = [peel(a) for a in cat.all_input_nodes] if op(cat) == "cat" else []
        if peel(start) in parts and all(p is peel(start) or not graph.precedes(start, p) for p in parts):
            found |= {cat, norm.source, *graph.between(norm.source, norm.output)}
    return found


def _loose(graph: Flow, region: list[Node], known: set[Node], mixes: bool) -> Node | None:
    """An operator of a norm before a branch's first product or after its last.

    mixes: before its first product a mixer may also shift and weigh rows, and after its last it may end a stack of
    its own: what it is has no name, and only the norm that it reads through must be known.
    """
    products = [n for n in region if op(n) in _PRODUCTS]
    if not products:
        return next((n for n in region if op(n) in _ELEMENTWISE), None)
    for node in region:
        moved = op(node) in _BEFORE or peel(node) is not node
        first = not any(graph.precedes(p, node) or p is node for p in products)
        if node not in known and first and not moved and (not mixes or op(node) in _NORMALISE):
            return node
        if mixes or op(node) not in _ELEMENTWISE or _chosen(node):
            continue
        if not any(graph.precedes(node, p) for p in products):
            return node  # after the last product
    return None


def _carrying(start: Node, region: list[Node]) -> list[Node]:
    """The nodes that the values of `start` reach, not its shape alone."""
    found = {start}
    for node in region:
        if op(node) not in _SHAPES and any(a in found for a in node.all_input_nodes):
            found.add(node)
    return [n for n in region if n in found]


def _chosen(node: Node) -> bool:
    """Whether an operator works on the weights of chosen experts, not on the state."""
    weights = operand(node)
    source = operand(peel(weights)) if weights is not None else None
    return source is not None and op(source) == "topk"
