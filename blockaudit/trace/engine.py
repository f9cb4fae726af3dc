"""A recorded graph run as it was recorded: operator by operator, in its own dtypes, on values of our choosing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any, cast

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate  # pyright: ignore[reportUnknownVariableType] - untyped upstream

from blockaudit.graph.flow import Flow, op
from blockaudit.graph.pure import writes
from blockaudit.graph.record import Recording
from blockaudit.trace.weights import Matrix

_VIEW: Any = torch.ops.aten.view.default
_RESHAPE: Any = torch.ops.aten.reshape.default
Values = dict[Node, Any]


class Engine:
    """Runs ranges of one recording's nodes. A value is freed after its last reader unless the caller keeps it.

    matrix: the weights that are too large to be held whole; where only rows of one are read, or it is only multiplied
    by, the operators take it in parts.
    """

    def __init__(
        self,
        recording: Recording,
        weight: Callable[[str], torch.Tensor],
        device: torch.device,
        matrix: Callable[[str], Matrix | None] = lambda name: None,
    ) -> None:
        self.recording, self.device, self._weight = recording, device, weight
        self.nodes = [n for n in recording.nodes if n.op != "output"]
        self.flow = Flow(recording.nodes)
        self.index = self.flow.index
        self._last = {n: max((self.index[u] for u in n.users), default=self.index[n]) for n in self.nodes}
        self._writes = any(writes(n) for n in self.nodes)
        self._parted = dict(self._in_parts(matrix))
        self.weights: set[Node] = set()  # parameters and what is made of them alone: read again, never kept
        for node in self.nodes:
            read = node.all_input_nodes
            if node.op == "get_attr" or (read and all(a in self.weights for a in read)):
                self.weights.add(node)

    def inputs(self, given: Iterable[torch.Tensor]) -> Values:
        """Values of the placeholders."""
        places = [n for n in self.nodes if n.op == "placeholder"]
        return {n: v.to(self.device) for n, v in zip(places, given, strict=True)}

    def weights_in(self, begin: int, end: int) -> list[str]:
        """Names of the parameters that the nodes of a range read, in the order of their reading."""
        found = [self.recording.names.get(str(n.target), "") for n in self.nodes[begin:end] if n.op == "get_attr"]
        return [name for name in dict.fromkeys(found) if name]

    def run(self, begin: int, end: int, values: Values, keep: Set[Node]) -> Values:
        """Run nodes begin to end (places in the graph) on `values`, which is changed: made values go in, dead ones out.

        Returns the values of `keep` that were made, as they were when they were made.
        """
        kept: Values = {}
        for node in self.nodes[begin:end]:
            if node not in values:
                values[node] = self.value(node, values)
            if node in keep:
                kept[node] = _copy(values[node]) if self._writes else values[node]
            self._free(node, values)
        return kept

    def _free(self, node: Node, values: Values) -> None:
        """What no node behind this one reads is let go of."""
        for used in (*node.all_input_nodes, node):
            if self._last.get(used, -1) <= self.index[node]:
                values.pop(used, None)

    def replay(self, region: Iterable[Node], known: Mapping[Node, Any], end: Node) -> Any:
        """The value of `end` where the nodes of a region are run on known values (cloned where operators write)."""
        values: Values = {n: _copy(v) for n, v in known.items()} if self._writes else dict(known)
        for node in region:
            if node not in values:
                values[node] = self.value(node, values)
            if node is not end:
                self._free(node, values)
        return values[end]

    def outside(self, region: Iterable[Node]) -> set[Node]:
        """What a region reads and does not hold."""
        inside = set(region)
        return {a for n in inside for a in n.all_input_nodes} - inside

    def constant(self, node: Node) -> bool:
        """Whether a value depends on no input: parameters, buffers and what is made of them."""
        return not self.flow.is_data(node)

    def resolved(self, nodes: Iterable[Node], values: Mapping[Node, Any]) -> Values:
        """Values of nodes: known ones as they are, constants made anew. Raises KeyError for any other."""
        found: Values = {}
        for node in nodes:
            if node in values:
                found[node] = values[node]
            elif self.constant(node):
                found[node] = self.replay(self.flow.made_of([node]), {}, node)
            else:
                raise KeyError(node.name)
        return found

    def value(self, node: Node, values: Mapping[Node, Any]) -> Any:
        if node in self._parted:
            return self._parted[node]
        if node.op == "get_attr":
            return self._attribute(node)
        parts = [a for a in node.all_input_nodes if a in self._parted]
        if parts:
            return self._by_parts(node, self._parted[parts[0]], values)

        def fetch(argument: Any) -> Any:
            return values[argument] if isinstance(argument, Node) else argument

        args = cast("tuple[Any, ...]", map_aggregate(node.args, fetch))
        kwargs = {k: self.device if k == "device" else fetch(v) for k, v in node.kwargs.items() if k != "pin_memory"}
        call: Any = _RESHAPE if node.target is _VIEW and not self._writes else node.target
        return call(*args, **kwargs)

    def _attribute(self, node: Node) -> torch.Tensor:
        name = self.recording.names.get(str(node.target), "")
        constant = self.recording.constants.get(str(node.target))
        if name and constant is None:
            weight = self._weight(name)
            return weight.clone() if self._writes else weight
        value: Any = constant if constant is not None else getattr(self.recording.module, str(node.target))
        return value.detach().to(self.device)

    def _in_parts(self, matrix: Callable[[str], Matrix | None]) -> Iterator[tuple[Node, Matrix]]:
        """Large weights whose readers can do with parts of them, and their transposes."""
        for node in self.nodes:
            name = self.recording.names.get(str(node.target), "") if node.op == "get_attr" else ""
            if not name or str(node.target) in self.recording.constants:
                continue
            turned = [u for u in node.users if op(u) == "t"]
            readers = [u for u in node.users if u not in turned and not _looks_up(u, node)]
            if not readers and all(_multiplies(u, t) for t in turned for u in t.users) and (found := matrix(name)):
                yield from ((n, found) for n in (node, *turned))

    def _by_parts(self, node: Node, matrix: Matrix, values: Mapping[Node, Any]) -> torch.Tensor:
        if op(node) == "embedding":
            return matrix.rows(values[cast("Node", node.args[1])])
        call: Any = node.target
        given: list[Any] = [values[a] for a in node.all_input_nodes if a not in self._parted]
        if op(node) == "mm":
            return torch.cat([call(given[0], block.t()) for block in matrix.blocks()], -1)
        bias, x = given
        blocks: list[torch.Tensor] = []
        start = 0
        for block in matrix.blocks():
            blocks.append(call(bias[start : start + len(block)], x, block.t()))
            start += len(block)
        return torch.cat(blocks, -1)


def _looks_up(node: Node, table: Node) -> bool:
    """Whether an operator reads rows of a table and nothing else."""
    return op(node) == "embedding" and node.args[0] is table and isinstance(node.args[1], Node)


def _multiplies(node: Node, matrix: Node) -> bool:
    """Whether an operator is a plain product with a matrix on its right, with or without a bias [columns]."""
    if node.kwargs or any(not isinstance(a, Node) for a in node.args) or node.args[-1] is not matrix:
        return False
    bias = node.args[0] if op(node) == "addmm" else None
    plain = op(node) == "mm" or (isinstance(bias, Node) and len(bias.meta["val"].shape) == 1)
    return plain and sum(a is matrix for a in node.args) == 1


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
