"""Values of one recording, and what stands around them: norms, constant factors, layouts, masks of rows."""

from __future__ import annotations

import torch
from torch.fx import Node

from blockaudit.graph import norms
from blockaudit.graph.flow import Flow, carried, number, op, operand, peel, replay, shape
from blockaudit.graph.norms import Norm
from blockaudit.graph.record import BATCH, LENGTH, Recording

SUMS = {"add", "add_"}
PRODUCTS = {"mm", "addmm", "bmm"}


class Values:
    """What can be said of a value by itself."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.graph = Flow(recording.nodes)
        self._norms: dict[Node, Norm | None] = {}

    def norm(self, node: Node) -> Norm | None:
        """The norm that ends at a value, behind views and with the casts around it."""
        node = peel(node, casts=False)
        after = list(node.users)
        # The cast back to the state's dtype ends the norm, where it has one.
        ends = [after[0]] if len(after) == 1 and op(after[0]) == "_to_copy" else []
        ends += [node, peel(node)]
        return next((n for end in dict.fromkeys(ends) if (n := self._at(end)) is not None), None)

    def _affine(self, node: Node) -> Norm | None:
        return norms.affine(self.graph, self.recording.names, self.recording.constants, node)

    def _at(self, node: Node) -> Norm | None:
        if node not in self._norms:
            self._norms[node] = norms.find(self.graph, self.recording.names, self.recording.constants, node)
        return self._norms[node]

    def _scaled(self, node: Node) -> tuple[Node, float | None]:
        """A value behind constant factors, and their product; None where a factor is no known number."""
        factor: float | None = 1.0
        while op(node) in ("mul", "div", "mul_", "div_") and not node.kwargs:  # a rounded quotient is none
            value, by = operand(node, 0), operand(node, 1)
            constant = number(node, 1)
            if value is None or (by is None and constant is None):
                break
            if by is not None:
                if self.graph.is_data(by) and not self.graph.is_data(value):
                    if "div" in op(node):
                        break  # a constant divided by a value
                    value, by = by, value
                if self.graph.is_data(by) or shape(value) != shape(node):
                    break
                if shape(by) not in ((), (1,)) and self.norm(node) is not None:
                    break  # a norm's own weight is no factor
                known = self.recording.constants.get(str(by.target))
                constant = float(known) if known is not None and known.numel() == 1 else None
            if factor is not None:
                factor = None if constant is None else factor * constant if "mul" in op(node) else factor / constant
            node = peel(value)
        return node, factor

    def _bare(self, node: Node) -> Node:
        """A value of the stream behind layouts and the mask of rows that are padding."""
        while True:
            node = carried(node)
            inner = self._masked(node)
            if inner is None:
                return node
            node = inner

    def _masked(self, node: Node) -> Node | None:
        """The value behind a multiplication by a mask of its rows, where all rows are valid."""
        if op(node) != "mul":
            return None
        for value, by in ((operand(node, 0), operand(node, 1)), (operand(node, 1), operand(node, 0))):
            if value is None or by is None or shape(value) != shape(node) or shape(by)[-1:] != (1,):
                continue
            mask = self._mask(by)
            if mask is not None and bool((mask == 1).all()):
                return value
        return None

    def _data(self, product: Node) -> Node:
        """The operand of a matrix product that depends on the tokens."""
        return peel(next((a for a in product.all_input_nodes if self.graph.is_data(a)), product.all_input_nodes[0]))

    def _mask(self, node: Node) -> torch.Tensor | None:
        """A mask's value for tokens that are all valid; None where it depends on weights."""
        made = [n for n in self.recording.nodes if n is node or self.graph.precedes(n, node)]
        if any(n.op == "get_attr" for n in made):
            return None
        inputs = [n for n in made if n.op == "placeholder"]
        known = {n: torch.ones(BATCH, LENGTH, dtype=torch.long) for n in inputs}
        try:
            return replay(made, known)[node]
        except (RuntimeError, TypeError, KeyError):
            return None


def times(a: float | None, b: float | None) -> float | None:
    """The product of two factors; None, one that is learned, makes it learned."""
    return None if a is None or b is None else a * b
