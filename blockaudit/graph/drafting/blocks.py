"""The blocks of a class over several readings: which branches and norm sites there are, in which layers, under what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from blockaudit.graph.drafting.catalog import Unfit, layer_number
from blockaudit.graph.drafting.reading import AddFact, BranchFact, NormFact, Reading, StackFact, sites
from blockaudit.graph.drafting.samples import Sample

NAMES = {
    "causal_self_attention": "self_attention", "self_attention": "self_attention", "cross_attention": "cross_attention",
    "gated_mlp": "mlp", "mlp": "mlp", "moe": "mlp",
}  # fmt: skip


@dataclass(frozen=True)
class Read:
    """One reading with the sample of the same config."""

    sample: Sample
    reading: Reading


@dataclass
class SiteUnion:
    """A norm site with one parameter template: its facts by (reading, layer)."""

    site: str
    weight: str  # `.weight` parameter with `{l}`; empty for a norm without parameters
    found: dict[tuple[int, int], NormFact] = field(default_factory=dict[tuple[int, int], NormFact])


@dataclass
class BranchUnion:
    """A branch by name and kind: its facts by (reading, layer)."""

    name: str
    kind: str
    found: dict[tuple[int, int], BranchFact] = field(default_factory=dict[tuple[int, int], BranchFact])
    sites: dict[tuple[str, str], SiteUnion] = field(default_factory=dict[tuple[str, str], SiteUnion])
    parameters: set[str] = field(default_factory=set[str])


@dataclass
class StackUnion:
    """A stack over all readings."""

    name: str
    first: int = 0
    depth: list[int] = field(default_factory=list[int])
    branches: dict[tuple[str, str], BranchUnion] = field(default_factory=dict[tuple[str, str], BranchUnion])
    parallel: dict[tuple[int, int], bool] = field(default_factory=dict[tuple[int, int], bool])
    shortcut: dict[tuple[int, int], float | None] = field(default_factory=dict[tuple[int, int], float | None])
    facts: list[StackFact] = field(default_factory=list[StackFact])
    prefixes: set[str] = field(default_factory=set[str])  # of parameters, before the layer number


def union(reads: Sequence[Read]) -> dict[str, StackUnion]:
    """Every stack over all readings, by the name that the recording gives it. Raises Unfit."""
    names = list(reads[0].reading.stacks)
    if any(list(r.reading.stacks) != names for r in reads):
        raise Unfit("some configs run other stacks")
    found: dict[str, StackUnion] = {}
    for name in names:
        stack = found[name] = StackUnion(name)
        for place, read in enumerate(reads):
            _take(stack, place, read.reading.stacks[name])
    return found


def _take(stack: StackUnion, place: int, facts: StackFact) -> None:
    if facts.unread or not facts.adds:
        raise Unfit(f"{stack.name}: {'; '.join(facts.unread) or 'no residual add was read'}")
    stack.facts.append(facts)
    numbers, prefixes = _numbers(facts)
    stack.prefixes |= prefixes
    layers = sorted(set(numbers))
    counts = Counter(numbers)
    if numbers != sorted(numbers) or layers != list(range(layers[0], layers[0] + len(layers))):
        raise Unfit(f"{stack.name}: layers run in another order than they are numbered")
    if len(set(counts.values())) != 1:
        raise Unfit(f"{stack.name}: layers with different numbers of adds")
    if place and layers[0] != stack.first:
        raise Unfit(f"{stack.name}: the first layer is numbered {layers[0]} and {stack.first}")
    stack.first = layers[0]
    stack.depth.append(len(layers))
    for number, add in zip(numbers, facts.adds, strict=True):
        parallel = len(add.branches) > 1
        if stack.parallel.setdefault((place, number), parallel) != parallel:
            raise Unfit(f"{stack.name}: a layer with parallel and sequential branches")
        shortcut = stack.shortcut.setdefault((place, number), add.shortcut_scale)
        if shortcut != add.shortcut_scale:
            raise Unfit(f"{stack.name}: adds of one layer with different shortcut factors")
        for branch in add.branches:
            _branch(stack, (place, number), branch)


def _branch(stack: StackUnion, at: tuple[int, int], fact: BranchFact) -> None:
    name = NAMES.get(fact.kind, fact.kind)
    if fact.kind == "unclassified":
        raise Unfit(f"{stack.name}: a branch of layer {at[1]} is of no kind that is read")
    key = (name, fact.kind)
    branch = stack.branches.setdefault(key, BranchUnion(name, fact.kind))
    if any(at in b.found for k, b in stack.branches.items() if k[0] == name):
        raise Unfit(f"{stack.name}: layer {at[1]} has two branches called {name}")
    branch.found[at] = fact
    branch.parameters |= fact.parameters
    for site, norm in sites(fact).items():
        if norm is not None:
            _site(branch, at, site, norm)
    for norm in fact.inner:
        _site(branch, at, f"inner.{_label(norm.weight)}", norm)


def _site(branch: BranchUnion, at: tuple[int, int], site: str, norm: NormFact) -> None:
    weight = templated(norm.weight, at[1]) if norm.weight else ""
    known = branch.sites.setdefault((site, weight), SiteUnion(site, weight))
    known.found.setdefault(at, norm)


def templated(name: str, layer: int) -> str:
    """A parameter's name with its layer number as `{l}`. Raises Unfit."""
    split = layer_number(name)
    if split is None or split[1] != layer:
        raise Unfit(f"{name} is read in layer {layer}")
    return f"{split[0]}{{l}}{split[2]}"


def _label(weight: str) -> str:
    """`q` of `self_attn.q_norm.weight`."""
    words = [p for p in weight.removesuffix(".weight").split(".") if not p.isdigit()]
    leaf = words[-1]
    if leaf in ("norms", "norm", "weight", "layernorm") and len(words) > 1:
        leaf = words[-2]
    for end in ("_layernorm", "_layer_norm", "_norm", "layernorm", "norm", "_ln"):
        if leaf.endswith(end) and leaf != end:
            leaf = leaf.removesuffix(end)
            break
    return {"query": "q", "key": "k"}.get(leaf, leaf)


def _numbers(facts: StackFact) -> tuple[list[int], set[str]]:
    """The layer number of every add, by the parameters that it alone reads; and what stands before those numbers."""
    uses = Counter(p for a in facts.adds for p in _names(a))
    numbers: list[int] = []
    prefixes: set[str] = set()
    for add in facts.adds:
        splits = [s for p in _names(add) if uses[p] == 1 and (s := layer_number(p)) is not None]
        found = {s[1] for s in splits}
        if len(found) != 1:
            raise Unfit("a layer of several numbers" if found else "layers share their parameters, or have no numbers")
        numbers.append(found.pop())
        prefixes |= {s[0] for s in splits}
    return numbers, prefixes


def _names(add: AddFact) -> Iterable[str]:
    found: set[str] = set()
    for branch in add.branches:
        found |= branch.parameters
        found |= {n.weight for n in (*sites(branch).values(), *branch.inner) if n is not None and n.weight}
    return found
