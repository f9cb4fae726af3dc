"""The recorded graph as data flow: who depends on whom, what is a view, what a subgraph gives when it is replayed."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate  # pyright: ignore[reportUnknownVariableType] - untyped upstream

# Operators that hand a value on, in another shape or place and nothing else.
MOVES = {
    "view", "_unsafe_view", "reshape", "clone", "alias", "detach", "contiguous", "squeeze", "unsqueeze", "expand",
    "lift_fresh",
}  # fmt: skip
_LOW = (torch.bfloat16, torch.float16, torch.float32)


def op(node: Node) -> str:
    """`add`, `mm`, `native_layer_norm`; empty for what is no call."""
    if node.op != "call_function":
        return ""
    packet: Any = getattr(node.target, "overloadpacket", None)
    return str(packet.__name__) if packet is not None else "getitem"


def shape(node: Node) -> tuple[int, ...]:
    """The shape of a recorded value, empty for what is no tensor (and for scalars)."""
    value: Any = node.meta.get("val")
    return tuple(int(n) for n in value.shape) if isinstance(value, torch.Tensor) else ()


def dtype(node: Node) -> torch.dtype | None:
    """The dtype of a recorded value."""
    value: Any = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None


def operand(node: Node, place: int = 0) -> Node | None:
    """An argument that is itself a recorded value; None where it is a number or is not there."""
    found = node.args[place] if place < len(node.args) else None
    return found if isinstance(found, Node) else None


def number(node: Node, place: int) -> float | None:
    """An argument that is a plain number."""
    found = node.args[place] if place < len(node.args) else None
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


class Flow:
    """Ancestors of every node, as bit sets; and which nodes depend on the input tokens at all."""

    def __init__(self, nodes: list[Node]) -> None:
        self.index = {n: i for i, n in enumerate(nodes)}
        self.nodes = nodes
        self._ancestors: list[int] = []
        inputs = 0
        for i, n in enumerate(nodes):
            bits = 0
            for a in n.all_input_nodes:
                j = self.index[a]
                bits |= self._ancestors[j] | (1 << j)
            self._ancestors.append(bits)
            if n.op == "placeholder":
                inputs |= 1 << i
        self._inputs = inputs
        self.found: dict[Hashable, Any] = {}  # what replay said of a subgraph, by its structure

    def precedes(self, a: Node, b: Node) -> bool:
        """Whether b is computed from a."""
        return bool(self._ancestors[self.index[b]] >> self.index[a] & 1)

    def is_data(self, n: Node) -> bool:
        """Whether n depends on the tokens (a parameter and what is made of it does not)."""
        i = self.index[n]
        return bool((self._ancestors[i] | 1 << i) & self._inputs)

    def between(self, a: Node, b: Node) -> list[Node]:
        """Nodes that are computed from a and go into b, b included, in order of execution."""
        i, j = self.index[a], self.index[b]
        bits = self._ancestors[j]
        return [n for n in self.nodes[i + 1 : j] if bits >> self.index[n] & 1 and self.precedes(a, n)] + (
            [b] if self.precedes(a, b) else []
        )

    def made_of(self, values: Iterable[Node]) -> list[Node]:
        """What values are made of that does not depend on the tokens, they themselves included, in order."""
        found: set[Node] = set()
        todo = list(values)
        while todo:
            node = todo.pop()
            if node not in found:
                found.add(node)
                todo += node.all_input_nodes
        return sorted((n for n in found if not self.is_data(n)), key=self.index.__getitem__)

    def bottlenecks(self, a: Node, b: Node) -> list[Node]:
        """Nodes that every path from a to b runs through, b included, in order of execution."""
        region = self.between(a, b)
        inside = set(region)
        last_use = {n: max((self.index[u] for u in n.users if u in inside), default=-1) for n in (a, *region)}
        found: list[Node] = []
        reach = last_use[a]
        for n in region:
            # Nothing before n is read after n: all that goes on goes through n.
            if reach <= self.index[n]:
                found.append(n)
            reach = max(reach, last_use[n])
        return found


def peel(node: Node, *, casts: bool = True) -> Node:
    """The value behind views, full slices and (with `casts`) changes of dtype."""
    while (inner := operand(node)) is not None:
        moved = op(node) in MOVES or (op(node) == "slice" and shape(node) == shape(inner))
        moved = moved or (op(node) == "permute" and node.args[1] == list(range(len(shape(node)))))
        # `sum` of a list begins at zero.
        moved = moved or (op(node) in ("add", "add_") and number(node, 1) == 0 and shape(node) == shape(inner))
        if not (moved or (casts and op(node) == "_to_copy")):
            break
        node = inner
    part = _part(node)
    return node if part is None else peel(part, casts=casts)


def carried(node: Node) -> Node:
    """The value behind views, casts, other layouts of the axes, and rows that were left out."""
    while True:
        node = peel(node)
        inner = operand(node)
        rows = op(node) == "slice" and (number(node, 1) or 0) not in (-1, len(shape(node)) - 1)
        if inner is None or not (rows or op(node) in ("transpose", "permute")):
            return node
        node = inner


def _part(node: Node) -> Node | None:
    """The value that was stacked and is taken off the stack again."""
    parts = operand(node) if op(node) == "getitem" else None
    stack = operand(parts) if parts is not None and op(parts) == "unbind" else None
    if stack is None or op(stack) != "stack" or any(number(n, 1) for n in (stack, parts) if n is not None):
        return None
    found: Any = stack.args[0]
    place = number(node, 1)
    return found[int(place)] if place is not None else None


@contextmanager
def one_thread() -> Generator[None]:
    """Replay in one thread: rows are few, and on a busy machine threads wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def replay(region: Iterable[Node], known: Mapping[Node, Any]) -> dict[Node, Any]:
    """Run a subgraph on values of our choosing, in FP64: casts to a narrower float are lifted.

    known: a value for every node that the region reads and does not hold.
    """
    # Recorded operators may write in place: the caller's values stay as they are.
    values: dict[Node, Any] = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in known.items()}

    def fetch(argument: Any) -> Any:
        return values[argument] if isinstance(argument, Node) else argument

    for node in region:
        if node in values:
            continue
        args: Any = map_aggregate(node.args, fetch)
        kwargs = {k: _wide(k, fetch(v)) for k, v in node.kwargs.items() if k != "pin_memory"}
        call: Any = node.target
        values[node] = call(*args, **kwargs)
    return values


def structure(nodes: Sequence[Node], free: Set[Node], constants: Mapping[Node, torch.Tensor]) -> Hashable:
    """A key that subgraphs share where replay does the same on both, whatever their nodes are called.

    nodes: in order of execution; free: those that are given and not computed. Values of constants count, of parameters
    only shape and dtype.
    """
    places = {n: i for i, n in enumerate(nodes)}

    def written(argument: Any) -> Hashable:
        if isinstance(argument, Node):
            return "node", places.get(argument, argument)
        if isinstance(argument, list | tuple):
            return tuple(written(a) for a in cast("Sequence[Any]", argument))
        if isinstance(argument, slice):
            parts = cast("Any", argument)
            return "slice", written(parts.start), written(parts.stop), written(parts.step)
        return type(argument).__name__, cast("Hashable", argument)

    def described(node: Node) -> Hashable:
        if node in constants:
            return "constant", shape(node), dtype(node), constants[node].detach().double().numpy().tobytes()
        if node in free or node.op != "call_function":
            return node.op if node not in free else "free", shape(node), dtype(node)
        return node.target, written(node.args), tuple((k, written(v)) for k, v in sorted(node.kwargs.items()))

    return tuple(described(n) for n in nodes)


def _wide(key: str, value: Any) -> Any:
    return torch.float64 if key == "dtype" and value in _LOW else value
