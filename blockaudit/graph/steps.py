"""Executed branches in order, with the layer that each belongs to and the name that the manifest gives it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

from blockaudit.graph.stream import Add, Branch, Stream
from blockaudit.records.bound import BoundManifest, StackSpan

NAMES = {
    "causal_self_attention": "self_attention", "self_attention": "self_attention", "cross_attention": "cross_attention",
    "gated_mlp": "mlp", "mlp": "mlp", "moe": "mlp",
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One branch of one layer, with the add that it joins."""

    layer: int
    name: str
    branch: Branch
    add: Add
    last: bool  # of its add: the norm after the add is this branch's

    @property
    def told(self) -> bool:
        """Whether the operators say what the branch is; of a mixer without a kind of its own its place is all."""
        return self.branch.kind in NAMES


def of_stack(bound: BoundManifest | None, span: StackSpan, stream: Stream, layers: int) -> list[Step]:
    """Every branch of a stack of so many layers; empty where the adds do not divide into them."""
    declared = [_declared(bound, span, span.first + n) for n in range(layers)]
    counts = _counts(declared, stream, layers)
    bounds = list(pairwise(accumulate(counts, initial=0)))
    steps: list[Step] = []
    for n, (begin, end) in enumerate(bounds):
        branches = [(add, branch) for add in stream.adds[begin:end] for branch in add.branches]
        names = _names([b for _, b in branches], declared[n])
        steps += [
            Step(span.first + n, name, branch, add, branch is add.branches[-1])
            for name, (add, branch) in zip(names, branches, strict=True)
        ]
    return steps


def _declared(bound: BoundManifest | None, span: StackSpan, layer: int) -> list[tuple[str, str]]:
    """(name, kind) of the branches that the manifest gives a layer, in order."""
    if bound is None:
        return []
    kinds = {kind for kind, layers in span.kinds if layer in layers}
    stack = next((s for s in bound.manifest.stacks if s.name == span.name), None)
    return [
        (b.name, b.kind)
        for b in (stack.branches if stack is not None else ())
        if (not b.layer_kinds or kinds & {*b.layer_kinds}) and _is_on(bound, span, b.name)
    ]


def _is_on(bound: BoundManifest, span: StackSpan, name: str) -> bool:
    owner = f"{span.name}.{name}"
    return any(f.startswith((f"{owner}.", f"{owner}[")) for f in bound.fields)


def _counts(declared: list[list[tuple[str, str]]], stream: Stream, layers: int) -> list[int]:
    """How many adds each layer has: as many in all, else as many as the manifest gives it branches."""
    adds = len(stream.adds)
    by_manifest = [len(d) for d in declared]
    alone = all(len(a.branches) == 1 for a in stream.adds)
    if alone and sum(by_manifest) == adds and len({*by_manifest}) > 1:
        return by_manifest
    if layers and adds and adds % layers == 0:
        return [adds // layers] * layers
    return _fewest(declared, [tuple(NAMES.get(b.kind, b.kind) for b in a.branches) for a in stream.adds])


def _fewest(declared: list[list[tuple[str, str]]], adds: list[tuple[str, ...]]) -> list[int]:
    """How many adds each layer has where a few layers lack a branch or add several at once; empty where that is open.

    adds: the names of each add's branches.
    """
    # (what differs, adds of each layer, whether another way differs as little), by the adds that are used up.
    ways: dict[int, tuple[int, list[int], bool]] = {0: (0, [], False)}
    for branches in declared:
        names, found = [n for n, _ in branches], dict[int, tuple[int, list[int], bool]]()
        for used, (cost, counts, tied) in ways.items():
            for n in range(len(names) + 1):
                mine = [b for a in adds[used : used + n] for b in a]
                if used + n > len(adds) or not {*mine} <= {*names} or len({*mine}) < len(mine):
                    break
                more = len(names) - len(mine) + (mine != [x for x in names if x in mine]) + (n < len(mine))
                old = found.get(used + n)
                if old is None or cost + more < old[0]:
                    found[used + n] = (cost + more, [*counts, n], tied)
                elif cost + more == old[0]:
                    found[used + n] = (*old[:2], True)
        ways = found
    cost, counts, tied = ways.get(len(adds), (0, [], True))
    return counts if not tied and 2 * cost <= len(declared) else []


def _names(branches: list[Branch], declared: list[tuple[str, str]]) -> list[str]:
    """The manifest's names where its branches are of the kinds that are executed, in that order, else the kinds' own.

    A branch that mixes rows and is no attention has no kind of its own: it takes the name of a declared one that is
    neither an attention nor an MLP.
    """
    own = [NAMES.get(b.kind, b.kind) for b in branches]
    if len(declared) != len(branches):
        return own
    if all(NAMES.get(kind, "unclassified") == name for name, (_, kind) in zip(own, declared, strict=True)):
        return [name for name, _ in declared]
    return own
