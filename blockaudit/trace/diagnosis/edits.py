"""Edits of the manifest that a candidate's layer suggests: its executed block, held against the declared one.

Operators and solved numbers propose; whoever uses an edit runs the edited reference on the numbers before believing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from blockaudit.graph.norms import Norm
from blockaudit.graph.steps import Step
from blockaudit.records.bound import BoundManifest
from blockaudit.records.norm_spec import NormSpec
from blockaudit.reference.assembly import SITES, Block, BranchPlan, NormSite
from blockaudit.trace.diagnosis.held import Held
from blockaudit.trace.identify.solved import Solved
from blockaudit.trace.program import Layer

Apply = Callable[[Block], Block]
PLACEMENTS = {"norm_in": "pre_branch", "norm_out": "post_branch", "norm_post": "post_add"}
# Fields of a norm that an edit may change one by one, in the order in which they are tried.
FIELDS = (
    "epsilon", "epsilon_location", "scale_offset", "variance_correction", "center", "bias", "scale", "work_dtype",
    "cast_order",
)  # fmt: skip
# What only the rounding of a low dtype shows.
CASTS = ("work_dtype", "cast_order")
SCALES = {"self_attention": "attention", "cross_attention": "cross_attention", "mlp": "mlp"}
# One field of a norm that differs: its name, the declared and the other value, and the norm with it.
Change = tuple[str, Any, Any, Callable[[NormSite], NormSite]]


@dataclass(frozen=True)
class Edit:
    """One field of the manifest with another value.

    `apply` changes the block of one layer, `rebind` the manifest itself, `outer` the norm beside the layers that the
    field belongs to; `times` is how often that norm is applied, `elsewhere` the layers whose weights branches run with.
    """

    field: str
    declared: Any
    value: Any
    apply: Apply = lambda block: block
    evidence: str = ""
    rebind: Callable[[BoundManifest], BoundManifest] | None = None
    outer: Callable[[NormSite | None], NormSite | None] | None = None
    times: int = 1
    elsewhere: tuple[tuple[str, int], ...] = ()

    @property
    def owner(self) -> str:
        return self.field.rpartition(".")[0]

    @property
    def key(self) -> str:
        """What makes two proposals one."""
        return repr((self.field, self.value))


def proposed(block: Block, layer: Layer, held: Held, casts: bool) -> list[Edit]:
    """Where the layer as its operators run differs from the declared block. casts: whether the dtype shows casts."""
    if not layer.steps:
        return []
    return [*_order(block, layer), *_sums(block, layer), *_norms(block, layer, held, casts)]


def solved_edits(block: Block, number: int, solved: dict[tuple[str, int | None], list[Solved]]) -> Iterator[Edit]:
    """Where the numbers of a layer's norms say something else than is declared."""
    for part in block.branches:
        for site, norm in part.norms.items():
            for name, declared, value, change in solved_changes(norm, solved.get((norm.field, number), ())):
                yield Edit(f"{norm.field}.{name}", declared, value, at_norm(part.name, site, change), "solved")


def solved_changes(norm: NormSite, found: Sequence[Solved]) -> Iterator[Change]:
    """Fields of one norm that were solved to something else than is declared."""
    told = {s.field: s.value for s in found if s.value is not None and s.field in ("family", *FIELDS)}
    theirs = replace(norm.spec, **told)
    yield from differences(norm, theirs, norm.weight, norm.bias, casts=True)


def _order(block: Block, layer: Layer) -> Iterator[Edit]:
    names = [s.name for s in layer.steps]
    declared = [b.name for b in block.branches]
    if names != declared and set(names) <= set(declared):
        order = [next(b for b in block.branches if b.name == n) for n in names]
        yield Edit(
            f"{block.stack}.branch_order", [b.kind for b in block.branches], [b.kind for b in order],
            lambda b: replace(b, branches=tuple(b.branch(n) for n in names)), "the branches in order of execution",
        )  # fmt: skip
    parallel = any(len(s.add.branches) > 1 for s in layer.steps)
    if parallel != block.parallel and len(layer.steps) > 1:
        yield Edit(f"{block.stack}.parallel", block.parallel, parallel, lambda b: replace(b, parallel=parallel))


def _sums(block: Block, layer: Layer) -> Iterator[Edit]:
    for step, part in paired(block, layer):
        factor, scale = step.add.shortcut_scale, step.branch.scale
        if factor is not None and not same(factor, part.shortcut_scale):
            yield Edit(
                f"{block.stack}.residual.shortcut_scale", part.shortcut_scale, factor,
                at(step.name, lambda p, f=factor: replace(p, shortcut_scale=f)),
                f"the factor on the shortcut of {step.name}",
            )  # fmt: skip
        if scale is not None and not same(scale, part.scale):
            name = f"{block.stack}.residual.{SCALES.get(step.name, 'mlp')}_branch_scale"
            yield Edit(name, part.scale, scale, at(step.name, lambda p, f=scale: replace(p, scale=f)))
    for step, part in paired(block, layer):
        norm = step.branch.norm_in
        if step.add.used is not None and norm is not None and step.add.used is norm.output and not part.normalised:
            yield Edit(
                f"{block.stack}.residual.shortcut_source", "state", "normalised_state",
                at(step.name, lambda p: replace(p, normalised=True)), f"the shortcut of {step.name}",
            )  # fmt: skip


def _norms(block: Block, layer: Layer, held: Held, casts: bool) -> Iterator[Edit]:
    for step, part in paired(block, layer):
        found = executed_norms(layer, part, held)
        reads = _reads(step, part)
        if reads != part.reads:
            yield Edit(
                f"{part.owner}.reads", part.reads, reads, at(part.name, lambda p, r=reads: replace(p, reads=r)),
                "what the branch is computed from",
            )  # fmt: skip
        shared = reads != "state"
        gone = {s: n for s, n in part.norms.items() if s not in found}
        new = {s: n for s, n in found.items() if s not in part.norms and not (shared and s == "norm_in")}
        for site, norm in list(new.items()):
            origin = next((s for s, n in gone.items() if n.weight == norm.weight), None)
            if origin is None:
                continue
            del gone[origin], new[site]
            yield moved(part, origin, site, norm)
        yield from (_dropped(part, site) for site in gone)
        yield from (_invented(part, site, norm) for site, norm in new.items())
        for site, norm in found.items():
            if site in part.norms:
                own = part.norms[site]
                for name, declared, value, change in differences(own, norm.spec, norm.weight, norm.bias, casts):
                    if name == "module":
                        declared, value = _by_layer(layer.number, declared), _by_layer(layer.number, value)
                    yield Edit(f"{own.field}.{name}", declared, value, at_norm(part.name, site, change))


def _by_layer(number: int, module: str) -> str:
    """A module as every layer has it: `model.layers.{l}.mlp.norm`; one of another layer keeps its number."""
    return module.replace(f".{number}.", ".{l}.", 1)


def _reads(step: Step, part: BranchPlan) -> str:
    """What a branch reads, in the manifest's words."""
    branch = step.branch
    if part.reads == "state" or branch.norm_in is None:
        return "state"
    shared = [b.norm_in.output for b in step.add.branches if b.norm_in is not None and b is not branch]
    return part.reads if branch.norm_in.output in shared else "state"


def paired(block: Block, layer: Layer) -> list[tuple[Step, BranchPlan]]:
    """Executed branches with the declared ones of their names."""
    found = [(s, next((b for b in block.branches if b.name == s.name), None)) for s in layer.steps]
    return [(s, b) for s, b in found if b is not None]


def executed_norms(layer: Layer, part: BranchPlan, held: Held) -> dict[str, NormSite]:
    """The norms of one branch as its operators run them, by site."""
    last = next(s.last for s in layer.steps if s.name == part.name)
    sites = [s for s in SITES if last or s != "norm_post"]
    there = {s: n for s in sites if (n := layer.norm(part.name, s)) is not None}
    return {s: as_site(f"{part.owner}.{s}", n, part.norms.get(s), held) for s, n in there.items()}


def as_site(field: str, norm: Norm, declared: NormSite | None, held: Held) -> NormSite:
    """A norm of the graph as one of a block, its weights by the numbers that its parameters hold."""
    own = declared.weight if declared is not None else None
    weight = held.key(norm.weight, own) if norm.weight else None
    scale, offset = norm.scale, float(norm.scale_offset)
    if norm.weight and own is not None and weight is None:
        # Numbers that the checkpoint does not hold: all one, or moved by a constant.
        weight, constant, shift = own, held.constant(norm.weight), held.shift(norm.weight, own)
        if constant is not None and constant + offset == 1.0:
            scale, weight = "none", None
        elif shift is not None:
            offset += shift
    bias = None
    if norm.bias:
        bias = declared.bias if declared is not None and weight == declared.weight else None
        bias = bias or (weight.rpartition(".")[0] + ".bias" if weight is not None else None)
    spec = NormSpec(
        norm.family, norm.epsilon, norm.epsilon_location or "inside", norm.variance_correction or 0, norm.center,  # pyright: ignore[reportArgumentType]
        scale, offset, norm.bias, norm.work_dtype, norm.cast_order, norm.axes,
    )  # fmt: skip
    return NormSite(field, spec, weight if scale != "none" else None, bias)


def differences(
    declared: NormSite, spec: NormSpec, weight: str | None, bias: str | None, casts: bool
) -> Iterator[Change]:
    """Every field of one norm that differs from the declared one."""
    if spec.family != declared.spec.family:
        yield "family", declared.spec.family, spec.family, lambda n: replace(n, spec=_like(n.spec, spec))
    for name in FIELDS:
        mine, theirs = getattr(declared.spec, name), getattr(spec, name)
        if same(mine, theirs) or (name in CASTS and not casts) or (name == "scale_offset" and spec.scale == "none"):
            continue
        if spec.family != declared.spec.family and name in ("center", "variance_correction"):
            continue  # they follow from the family
        yield name, mine, theirs, _field(name, theirs, bias)
    if weight is not None and declared.weight is not None and weight != declared.weight:
        yield (
            "module", declared.weight.rpartition(".")[0], weight.rpartition(".")[0],
            lambda n: replace(n, weight=weight, bias=bias if n.bias else None),
        )  # fmt: skip


def _field(name: str, value: Any, bias: str | None) -> Callable[[NormSite], NormSite]:
    def change(norm: NormSite) -> NormSite:
        spec = replace(norm.spec, **{name: value})
        if name == "bias":
            return replace(norm, spec=spec, bias=(norm.bias or bias) if value else None)
        return replace(norm, spec=spec, weight=None if (name, value) == ("scale", "none") else norm.weight)

    return change


def moved(part: BranchPlan, origin: str, site: str, norm: NormSite) -> Edit:
    """A norm of a branch at another site of it."""

    def apply(plan: BranchPlan) -> BranchPlan:
        norms = {s: n for s, n in plan.norms.items() if s != origin}
        return replace(plan, norms={**norms, site: replace(norm, field=f"{part.owner}.{site}")})

    return Edit(
        f"{part.owner}.{origin}.placement", PLACEMENTS[origin], PLACEMENTS[site], at(part.name, apply),
        f"the weights of {origin} are run at {site}",
    )  # fmt: skip


def _dropped(part: BranchPlan, site: str) -> Edit:
    def apply(plan: BranchPlan) -> BranchPlan:
        return replace(plan, norms={s: n for s, n in plan.norms.items() if s != site})

    return Edit(f"{part.owner}.{site}.present", True, False, at(part.name, apply))


def _invented(part: BranchPlan, site: str, norm: NormSite) -> Edit:
    return Edit(
        f"{part.owner}.{site}.present", False, True,
        at(part.name, lambda plan: replace(plan, norms={**plan.norms, site: norm})),
    )  # fmt: skip


def _like(declared: NormSpec, family: NormSpec) -> NormSpec:
    """The declared norm of another family: what a family fixes is the family's."""
    return replace(declared, family=family.family, center=family.center, variance_correction=family.variance_correction)


def at(name: str, change: Callable[[BranchPlan], BranchPlan]) -> Apply:
    """A change of one branch of a block."""
    return lambda block: replace(block, branches=tuple(change(b) if b.name == name else b for b in block.branches))


def at_norm(name: str, site: str, change: Callable[[NormSite], NormSite]) -> Apply:
    """A change of one norm of a block, wherever that branch has it."""

    def apply(plan: BranchPlan) -> BranchPlan:
        if site not in plan.norms:
            return plan
        return replace(plan, norms={**plan.norms, site: change(plan.norms[site])})

    return at(name, apply)


def same(a: Any, b: Any) -> bool:
    """Equality of field values: numbers to a part in a million."""
    if isinstance(a, bool) or isinstance(b, bool) or not all(isinstance(v, int | float) for v in (a, b)):
        return a == b
    return abs(a - b) <= 1e-6 * max(abs(a), abs(b))


def together(edits: Sequence[Edit]) -> Apply:
    """All edits at once."""

    def apply(block: Block) -> Block:
        for edit in edits:
            block = edit.apply(block)
        return block

    return apply


def rebound(bound: BoundManifest, edits: Sequence[Edit]) -> BoundManifest:
    """The manifest with what the edits change of it."""
    for edit in edits:
        if edit.rebind is not None:
            bound = edit.rebind(bound)
    return bound
