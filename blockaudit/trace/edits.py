"""Edits of the manifest that a candidate's layer suggests: its executed block, held against the declared one.

The graph proposes; whoever uses an edit runs the edited reference on the numbers before believing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from blockaudit.graph.norms import Norm
from blockaudit.graph.steps import Step
from blockaudit.records.norm_spec import NormSpec
from blockaudit.reference.assembly import Block, BranchPlan, NormSite
from blockaudit.trace.program import Layer

Apply = Callable[[Block], Block]
PLACEMENTS = {"norm_in": "pre_branch", "norm_out": "post_branch", "norm_post": "post_add"}
# Fields of a norm that an edit may change one by one, in the order in which they are tried.
_FIELDS = (
    "epsilon", "epsilon_location", "scale_offset", "variance_correction", "center", "bias", "scale", "work_dtype",
    "cast_order",
)  # fmt: skip
_SCALES = {"self_attention": "attention", "cross_attention": "cross_attention", "mlp": "mlp"}


@dataclass(frozen=True)
class Edit:
    """One field of the manifest with another value, in one layer."""

    field: str
    declared: Any
    value: Any
    apply: Apply
    evidence: str = ""


def proposed(block: Block, layer: Layer, key: Callable[[str], str | None]) -> list[Edit]:
    """Where the layer as its operators run differs from the declared block.

    key: the checkpoint's key of a parameter by its name in the module.
    """
    return [*_order(block, layer), *_sums(block, layer), *_norms(block, layer, key)]


def _order(block: Block, layer: Layer) -> Iterator[Edit]:
    names = [s.name for s in layer.steps]
    declared = [b.name for b in block.branches]
    if names != declared and sorted(names) == sorted(declared):
        order = [next(b for b in block.branches if b.name == n) for n in names]
        kinds = [b.kind for b in order]
        yield Edit(
            f"{block.stack}.branch_order", [b.kind for b in block.branches], kinds,
            lambda b: replace(b, branches=tuple(order)), "the order in which the branches are added",
        )  # fmt: skip
    parallel = any(len(s.add.branches) > 1 for s in layer.steps)
    if parallel != block.parallel and len(layer.steps) > 1:
        yield Edit(f"{block.stack}.parallel", block.parallel, parallel, lambda b: replace(b, parallel=parallel))


def _sums(block: Block, layer: Layer) -> Iterator[Edit]:
    factors = [s.add.shortcut_scale for s in layer.steps]
    for step, factor in zip(layer.steps, factors, strict=True):
        part = next((b for b in block.branches if b.name == step.name), None)
        if part is not None and factor is not None and not _same(factor, part.shortcut_scale):
            yield Edit(
                f"{block.stack}.residual.shortcut_scale", part.shortcut_scale, factor,
                _at(step.name, lambda p, f=factor: replace(p, shortcut_scale=f)),
                f"the factor on the shortcut of {step.name}",
            )  # fmt: skip
    for step in layer.steps:
        part = next((b for b in block.branches if b.name == step.name), None)
        scale = step.branch.scale
        if part is not None and scale is not None and not _same(scale, part.scale):
            name = f"{block.stack}.residual.{_SCALES.get(step.name, 'mlp')}_branch_scale"
            yield Edit(name, part.scale, scale, _at(step.name, lambda p, f=scale: replace(p, scale=f)))


def _norms(block: Block, layer: Layer, key: Callable[[str], str | None]) -> Iterator[Edit]:
    for step in layer.steps:
        part = next((b for b in block.branches if b.name == step.name), None)
        if part is None:
            continue
        found = executed_norms(step, part, key)
        shared = part.reads != "state"
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
                yield from changed(part, site, norm.spec, norm.weight, norm.bias)


def executed_norms(step: Step, part: BranchPlan, key: Callable[[str], str | None]) -> dict[str, NormSite]:
    """The norms of one branch as its operators run them, by site."""
    branch = step.branch
    found = {"norm_in": branch.norm_in, "norm_out": branch.norm_out}
    found["norm_post"] = step.add.norm_post if step.last else None
    return {site: as_site(f"{part.owner}.{site}", norm, key) for site, norm in found.items() if norm is not None}


def as_site(field: str, norm: Norm, key: Callable[[str], str | None]) -> NormSite:
    """A norm of the graph as one of a block."""
    weight = key(norm.weight) or norm.weight or None
    bias = weight.rpartition(".")[0] + ".bias" if weight is not None and norm.bias else None
    spec = NormSpec(
        norm.family, norm.epsilon, norm.epsilon_location or "inside", norm.variance_correction or 0, norm.center,  # pyright: ignore[reportArgumentType]
        norm.scale, float(norm.scale_offset), norm.bias, norm.work_dtype, norm.cast_order, norm.axes,
    )  # fmt: skip
    return NormSite(field, spec, weight if norm.scale != "none" else None, bias)


def changed(
    part: BranchPlan, site: str, spec: NormSpec, weight: str | None, bias: str | None, casts: bool = True
) -> Iterator[Edit]:
    """Every field of one norm that differs from the declared one, as an edit of its own."""
    declared = part.norms[site]
    owner = declared.field
    if spec.family != declared.spec.family:
        yield Edit(
            f"{owner}.family", declared.spec.family, spec.family,
            _at_norm(part.name, site, lambda n: replace(n, spec=_like(n.spec, spec), bias=n.bias or bias)),
        )  # fmt: skip
    for name in _FIELDS:
        mine, theirs = getattr(declared.spec, name), getattr(spec, name)
        if _same(mine, theirs) or (name in ("work_dtype", "cast_order") and not casts):
            continue
        if spec.family != declared.spec.family and name in ("center", "variance_correction"):
            continue  # they follow from the family
        yield Edit(
            f"{owner}.{name}", mine, theirs,
            _at_norm(part.name, site, lambda n, f=name, v=theirs: replace(n, spec=replace(n.spec, **{f: v}), bias=n.bias or bias)),
        )  # fmt: skip
    if weight is not None and declared.weight is not None and weight != declared.weight:
        yield Edit(
            f"{owner}.module", declared.weight.rpartition(".")[0], weight.rpartition(".")[0],
            _at_norm(part.name, site, lambda n: replace(n, weight=weight, bias=bias if n.bias else None)),
            "the parameters that the rows were multiplied by",
        )  # fmt: skip


def moved(part: BranchPlan, origin: str, site: str, norm: NormSite) -> Edit:
    """A norm that stands at another place of its branch."""

    def apply(plan: BranchPlan) -> BranchPlan:
        return replace(plan, norms={**{s: n for s, n in plan.norms.items() if s != origin}, site: norm})

    return Edit(
        f"{part.owner}.{origin}.placement", PLACEMENTS[origin], PLACEMENTS[site], _at(part.name, apply),
        f"the norm with the parameters of {origin} is run as {site}",
    )  # fmt: skip


def _dropped(part: BranchPlan, site: str) -> Edit:
    def apply(plan: BranchPlan) -> BranchPlan:
        return replace(plan, norms={s: n for s, n in plan.norms.items() if s != site})

    return Edit(f"{part.owner}.{site}.present", True, False, _at(part.name, apply))


def _invented(part: BranchPlan, site: str, norm: NormSite) -> Edit:
    return Edit(
        f"{part.owner}.{site}.present", False, True,
        _at(part.name, lambda plan: replace(plan, norms={**plan.norms, site: norm})),
    )  # fmt: skip


def _like(declared: NormSpec, family: NormSpec) -> NormSpec:
    """The declared norm of another family: what a family fixes is the family's."""
    return replace(declared, family=family.family, center=family.center, variance_correction=family.variance_correction)


def _at(name: str, change: Callable[[BranchPlan], BranchPlan]) -> Apply:
    return lambda block: replace(block, branches=tuple(change(b) if b.name == name else b for b in block.branches))


def _at_norm(name: str, site: str, change: Callable[[NormSite], NormSite]) -> Apply:
    def apply(plan: BranchPlan) -> BranchPlan:
        if site not in plan.norms:
            return plan
        return replace(plan, norms={**plan.norms, site: change(plan.norms[site])})

    return _at(name, apply)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) or isinstance(b, bool) or not all(isinstance(v, int | float) for v in (a, b)):
        return a == b
    return abs(a - b) <= 1e-6 * max(abs(a), abs(b))


def together(edits: list[Edit]) -> Apply:
    """All edits at once."""

    def apply(block: Block) -> Block:
        for edit in edits:
            block = edit.apply(block)
        return block

    return apply
