"""Where each dropped value stands in the residual stream: whose dropout it is, and on which side of the add.

Read off a graph whose dropped values were rewritten as the values themselves (`masks.still`), so that the stream is the
one of an eval graph and the places are still there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch.fx import Node

from blockaudit.graph.flow import MOVES, op, operand, peel
from blockaudit.graph.masks import Drop
from blockaudit.graph.reader import Reader
from blockaudit.graph.stream import Add, Branch, Stream

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
_SOFTMAX = {"_softmax", "_safe_softmax"}
_CARRIES = MOVES | {"_to_copy", "transpose", "permute", "t", "view", "expand", "slice", "index", "getitem"}
OUTPUTS = {
    "causal_self_attention": "attention_output", "self_attention": "attention_output",
    "cross_attention": "cross_attention_output", "gated_mlp": "mlp_output", "mlp": "mlp_output", "moe": "mlp_output",
}  # fmt: skip


# Where the dropout of a whole stack stands: T5 has one, and no owner of the manifest covers it.
STACK_OUTPUT = "what leaves the stack"


@dataclass(frozen=True)
class Place:
    """One dropped value of a stack. `owner` is empty where the place is nobody's, `position` says then where it is.

    branches: the (add, branch) numbers that it drops; none for the embedding.
    """

    drop: Drop
    owner: str
    position: str
    branches: tuple[tuple[int, int], ...] = ()


def places(reader: Reader, stream: Stream, end: Node, drops: list[Drop]) -> list[Place]:
    """Every dropped value that goes into what leaves a stack."""
    mine = [d for d in drops if peel(d.node) is peel(end) or reader.graph.precedes(d.node, end)]
    found = [p for d in mine for p in _Placer(reader, stream, d).place()]
    return _last(stream, found)


def _last(stream: Stream, found: list[Place]) -> list[Place]:
    """What stands after the last add alone is no block's: it drops what leaves the stack."""
    after = {a for p in found if p.position == "after_add" for a, _ in p.branches}
    last = len(stream.adds) - 1
    same = [i for i, a in enumerate(stream.adds) if len(a.branches) == len(stream.adds[last].branches)]
    if last not in after or (last > 0 and len(same) > 1 and after & {*same[:-1]}):
        return found
    return [
        replace(p, owner="", position=STACK_OUTPUT, branches=())
        if p.position == "after_add" and any(a == last for a, _ in p.branches)
        else p
        for p in found
    ]


class _Placer:
    def __init__(self, reader: Reader, stream: Stream, drop: Drop) -> None:
        self.graph, self.stream, self.drop = reader.graph, stream, drop
        self.node = drop.node

    def place(self) -> list[Place]:
        number = next((i for i, a in enumerate(self.stream.adds) if self._before(self.node, a.total)), None)
        if number is None:
            return self._after_the_last()
        add = self.stream.adds[number]
        if self._before(self.node, add.shortcut):
            # Made before the state that this add takes: the embedding, or a sum that its norm reads dropped.
            return self._input(add) if number == 0 else self._outputs(number - 1, "after_add")
        if peel(self.node) is peel(add.shortcut):
            if self.node in self.graph.bottlenecks(peel(add.shortcut), add.total):
                return self._input(add) if number == 0 else self._outputs(number - 1, "after_add")
            if self._on_shortcut(add):
                return self._outputs(number, "shortcut")
            return self._nobody("what a branch reads")
        return self._of_add(number, add)

    def _before(self, a: Node, b: Node) -> bool:
        return self.graph.precedes(a, b)

    def _after_the_last(self) -> list[Place]:
        final = self.stream.final_norm
        if not self.stream.adds or (final is not None and not self._before(self.node, final.output)):
            return self._nobody(STACK_OUTPUT)
        return self._outputs(len(self.stream.adds) - 1, "after_add")

    def _input(self, add: Add) -> list[Place]:
        """The embedding's, where all that is looked up for the tokens runs through it."""
        tokens = [
            n
            for n in self.graph.nodes
            if op(n) == "embedding" and (i := operand(n, 1)) is not None and peel(i).op == "placeholder"
        ]
        whole = [t for t in tokens if self._before(t, self.node)]
        if whole and all(self.node in self.graph.bottlenecks(t, add.total) for t in whole):
            return [Place(self.drop, "embedding", "input")]
        return self._nobody("a part of the embedded input")

    def _on_shortcut(self, add: Add) -> bool:
        """Whether the shortcut itself is read through it: nothing but moves and factors up to the sum."""
        updates = {b.update for b in add.branches} | {b.core for b in add.branches}
        return any(self._straight(user, add, updates) for user in self.node.users)

    def _straight(self, node: Node, add: Add, updates: set[Node]) -> bool:
        if node is add.total:
            return True
        if node in updates or op(node) not in _CARRIES | {"mul", "div", "add"}:
            return False
        return any(
            self._straight(user, add, updates)
            for user in node.users
            if self._before(user, add.total) or user is add.total
        )

    def _of_add(self, number: int, add: Add) -> list[Place]:
        after = [i for i, b in enumerate(add.branches) if b.core is not self.node and self._before(b.core, self.node)]
        after += [i for i, b in enumerate(add.branches) if i not in after and self._is_core(b)]
        if after:
            return self._outputs(number, "before_add", after)
        inside = [(i, b) for i, b in enumerate(add.branches) if self._before(self.node, b.core)]
        if len(inside) != 1:
            return self._nobody("what branches read" if inside else "no branch")
        i, branch = inside[0]
        owner, where = self._inside(branch)
        return [Place(self.drop, owner, "inside_branch", ((number, i),))] if owner else self._nobody(where)

    def _is_core(self, branch: Branch) -> bool:
        """Whether an update is the dropped value itself, in whatever layout it was dropped."""
        node = peel(branch.core)
        while op(node) in _CARRIES and node is not self.node and (inner := operand(node)) is not None:
            node = inner
        return node is self.node or peel(self.node) is branch.core

    def _inside(self, branch: Branch) -> tuple[str, str]:
        """(owner, where it stands if it is nobody's) of a value that is dropped within a branch."""
        feeds = self._feeds_products()
        if "attention" in branch.kind:
            if op(peel(self.drop.source)) in _SOFTMAX and feeds:
                return "attention_probability", ""
            return "", f"inside {branch.kind}, not on the probabilities"
        if OUTPUTS.get(branch.kind) != "mlp_output":
            return "", f"inside a branch of kind {branch.kind}"
        start = branch.norm_in.output if branch.norm_in else None
        products = [n for n in self.graph.nodes if op(n) in _PRODUCTS and self._before(n, self.node)]
        own = [n for n in products if start is None or self._before(start, n)]
        if own and feeds:
            return "mlp_hidden", ""
        return "", f"inside {branch.kind}, not on what its last projection reads"

    def _feeds_products(self) -> bool:
        """Whether matrix products are all that reads the dropped value."""
        todo, ends = list(self.node.users), 0
        while todo:
            user = todo.pop()
            if op(user) in _PRODUCTS:
                ends += 1
            elif op(user) in _CARRIES:
                todo += list(user.users)
            else:
                return False
        return ends > 0

    def _outputs(self, number: int, position: str, which: list[int] | None = None) -> list[Place]:
        """The output dropout of every branch that an add joins, or of those given."""
        branches = self.stream.adds[number].branches
        found: list[Place] = []
        for i in range(len(branches)) if which is None else which:
            owner = OUTPUTS.get(branches[i].kind)
            if owner is None:
                return self._nobody(f"after a branch of kind {branches[i].kind}")
            whole = self.drop.granularity in ("example", "layer")
            found.append(Place(self.drop, "drop_path" if whole else owner, position, ((number, i),)))
        return found

    def _nobody(self, where: str) -> list[Place]:
        return [Place(self.drop, "", where)]
