"""Block assembly: the residual equation of one layer, as the manifest declares it.

One branch F of a layer takes the state x to

    y = N_post( a * x + b * N_out( F( N_in(x) ) ) )

with every norm that the manifest does not place left out, the shortcut factor a and the branch factor b (specification
0x01, 0x04). In a parallel block every branch reads x and all are added at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch

from blockaudit.manifest.view import owner_of
from blockaudit.records.bound import BoundManifest, ExpectedTensor
from blockaudit.records.norm_spec import NormSpec
from blockaudit.reference.norms import apply, released

SITES = ("norm_in", "norm_out", "norm_post")
# What a branch reads that is given the state from before the layer's earlier branches.
EARLIER = "an earlier state"
_SCALES = {"self_attention": "attention", "cross_attention": "cross_attention", "mlp": "mlp"}
# The branch functions: (branch name, what it reads [B, S, D]) -> the sublayer's output [B, S, D].
BranchFunction = Callable[[str, torch.Tensor], torch.Tensor]
# A tensor of the checkpoint by its full key.
Weight = Callable[[str], torch.Tensor]
# A norm of x: `exact` or `rounded`, with weights of one's own.
NormFunction = Callable[["NormSite", torch.Tensor], torch.Tensor]


class NormSite(msgspec.Struct, frozen=True):
    """One norm where it stands: its equation, and the checkpoint's keys of its parameters."""

    field: str  # `decoder.self_attention.norm_in`
    spec: NormSpec
    weight: str | None
    bias: str | None
    state: dict[str, str] = {}

    def parameters(self, weight: Weight) -> tuple[torch.Tensor | None, torch.Tensor | None, dict[str, torch.Tensor]]:
        """(weight, bias, what else its family reads) from the checkpoint."""
        w = weight(self.weight) if self.weight is not None else None
        b = weight(self.bias) if self.bias is not None else None
        return w, b, {role: weight(key) for role, key in self.state.items()}


def exact(weight: Weight) -> NormFunction:
    """Norms by their formula, in the dtype of what they read."""

    def norm(site: NormSite, x: torch.Tensor) -> torch.Tensor:
        w, b, state = site.parameters(weight)
        return apply(site.spec, x, w, b, state or None)

    return norm


def rounded(weight: Weight) -> NormFunction:
    """Norms as the declared numerics run them in a low dtype: every cast where the manifest says that it is."""

    def norm(site: NormSite, x: torch.Tensor) -> torch.Tensor:
        w, b, state = site.parameters(weight)
        return released(site.spec, x, w, b, state or None)

    return norm


class BranchPlan(msgspec.Struct, frozen=True):
    """One branch of a layer. `reads` is `state`, or the norm of another branch (`self_attention.norm_in`).

    `owner` is the contract's name of it (`decoder.mlp[moe]`).
    """

    owner: str
    name: str
    kind: str
    reads: str
    norms: dict[str, NormSite]
    scale: float
    shortcut_scale: float = 1.0  # of the add that the branch joins (of a parallel block: the first branch's)
    normalised: bool = False  # the shortcut of that add is what this branch's input norm gives


class Block(msgspec.Struct, frozen=True):
    """One layer. `normalised_shortcut`: the residual is taken after the input norm (MiniMax, BLOOM's flag)."""

    stack: str
    layer: int
    branches: tuple[BranchPlan, ...]
    parallel: bool
    normalised_shortcut: bool
    update: str = "add"

    def branch(self, name: str) -> BranchPlan:
        return next(b for b in self.branches if b.name == name)


class UnresolvedError(Exception):
    """The manifest does not hold a value that the equation needs; the message names the field."""


def block(bound: BoundManifest, stack: str, layer: int) -> Block:
    """The equation of one layer. Raises UnresolvedError."""
    declared = next(s for s in bound.manifest.stacks if s.name == stack)
    branches: list[BranchPlan] = []
    shortcut = number(bound, f"{stack}.residual.shortcut_scale")
    for name in dict.fromkeys(b.name for b in declared.branches):
        owner = owner_in(bound, stack, layer, name)
        if owner is None:
            continue
        norms = {s: n for s in SITES if (n := norm_site(bound, f"{owner}.{s}", stack, layer)) is not None}
        scale = number(bound, f"{stack}.residual.{_SCALES.get(name, 'mlp')}_branch_scale")
        kind, reads = str(value(bound, f"{owner}.kind")), str(value(bound, f"{owner}.reads"))
        branches.append(BranchPlan(owner, name, kind, reads, norms, scale, shortcut))
    return Block(
        stack,
        layer,
        tuple(branches),
        bool(value(bound, f"{stack}.parallel")),
        value(bound, f"{stack}.residual.shortcut_source") == "normalised_state",
        str(value(bound, f"{stack}.residual.update")),
    )


def owner_in(bound: BoundManifest, stack: str, layer: int, branch: str) -> str | None:
    """The contract's name of a branch in one layer (`decoder.mlp[moe]`); None where the layer does not have it."""
    span = next(s for s in bound.spans if s.name == stack)
    kinds = {kind for kind, layers in span.kinds if layer in layers}
    declared = next(s for s in bound.manifest.stacks if s.name == stack)
    for found in (b for b in declared.branches if b.name == branch):
        if found.layer_kinds and not kinds & set(found.layer_kinds):
            continue
        name = owner_of(found, declared)
        if f"{name}.kind" in bound.fields and bound.fields[f"{name}.kind"].value == found.kind:
            return name
    return None


def owner(bound: BoundManifest, stack: str, layer: int, branch: str) -> str:
    """The contract's name of a branch that the layer has. Raises UnresolvedError."""
    found = owner_in(bound, stack, layer, branch)
    if found is None:
        raise UnresolvedError(f"{stack}: layer {layer} has no branch {branch}")
    return found


def norm_site(bound: BoundManifest, field: str, stack: str | None = None, layer: int | None = None) -> NormSite | None:
    """The norm at a site (`decoder.mlp[moe].norm_in`), None where the manifest has none. Raises UnresolvedError."""
    present = bound.fields.get(f"{field}.present")
    if present is None or not value(bound, f"{field}.present"):
        return None
    mine = [e for e in bound.expected if e.owner == field and e.what in ("norm", "bias")]
    keys = {e.role: key(bound, e, stack, layer) for e in mine}
    others = {role: k for role, k in keys.items() if role not in ("weight", "bias")}
    return NormSite(field, spec(bound, field), keys.get("weight"), keys.get("bias"), others)


def spec(bound: BoundManifest, field: str) -> NormSpec:
    """Every field of one norm site, resolved. Raises UnresolvedError where config.json does not give one."""

    def get(name: str, default: Any) -> Any:
        return value(bound, f"{field}.{name}") if f"{field}.{name}" in bound.fields else default

    return NormSpec(
        family=str(get("family", "none")),
        epsilon=get("epsilon", None),
        epsilon_location=get("epsilon_location", None) or "inside",
        variance_correction=int(get("variance_correction", 0) or 0),
        center=bool(get("center", False)),
        scale=str(get("scale", "none")),
        scale_offset=float(get("scale_offset", 0) or 0),
        bias=bool(get("bias", False)),
        work_dtype=str(get("work_dtype", "float32") or "float32"),
        cast_order=str(get("cast_order", "none") or "none"),
        axes=tuple(get("reduction_axes", [-1])),
        groups=get("groups", None),
        subset=get("subset.size", None),
    )


def value(bound: BoundManifest, field: str) -> Any:
    """A resolved field. Raises UnresolvedError."""
    found = bound.fields.get(field)
    if found is None or not found.known:
        raise UnresolvedError(f"{field} is not known")
    return found.value


def number(bound: BoundManifest, field: str) -> float:
    """A factor. Raises UnresolvedError where it is learned or not known."""
    found = value(bound, field) if field in bound.fields else 1.0
    if not isinstance(found, int | float):
        raise UnresolvedError(f"{field} is no constant: {found!r}")
    return float(found)


def key(
    bound: BoundManifest, expected: ExpectedTensor, stack: str | None = None, layer: int | None = None, **axes: int
) -> str:
    """The checkpoint's key of a tensor in one layer. Layers that share one set of tensors (ALBERT) share keys.

    `layer` counts the layers that run, from the stack's first number in keys; `axes` gives the other axes (an expert).
    """
    numbers = {axis: 0 for axis, _ in expected.counts} | axes
    if layer is not None and "{l}" in expected.template:
        span = next(s for s in bound.spans if s.name == (expected.stack or stack))
        axis = bound.functions.get(f"{span.name}.layer_axis")
        inner = dict(expected.counts).get(axis.value, 1) if axis is not None else 1
        place = layer - span.first
        if axis is not None:
            numbers[axis.value] = place % inner
        if span.run and span.stored and span.run != span.stored:
            # transformers 5.24.0, models/albert: layer n of L, each of `inner` sublayers, is of group n * groups // L.
            place = (place // inner) * span.stored // (span.run // inner)
        numbers["l"] = span.first + place
    return re.sub(r"\{(\w+)\}", lambda m: str(numbers.get(m[1], m[0])), expected.template)


def layer(plan: Block, x: torch.Tensor, branch: BranchFunction, norm: NormFunction) -> dict[str, torch.Tensor]:
    """One layer on the state x [B, S, D]: every site of the contract by `branch.site`, in order, `state` last."""
    sites: dict[str, torch.Tensor] = {}
    total: torch.Tensor | None = None
    for i, part in enumerate(plan.branches):
        last = not plan.parallel or i == len(plan.branches) - 1
        inside = norm(part.norms["norm_in"], x) if "norm_in" in part.norms else x
        if part.reads != "state":
            inside = sites[part.reads]
        if total is None:
            total = part.shortcut_scale * (inside if plan.normalised_shortcut or part.normalised else x)
            sites[f"{part.name}.residual"] = total
        if "norm_in" in part.norms:
            sites[f"{part.name}.norm_in"] = inside
        u = sites[f"{part.name}.branch"] = branch(part.name, inside)
        if "norm_out" in part.norms:
            u = sites[f"{part.name}.norm_out"] = norm(part.norms["norm_out"], u)
        u = sites[f"{part.name}.update"] = u if part.scale == 1 else part.scale * u
        total = total + u
        if not last:
            continue
        sites[f"{part.name}.sum"] = total
        x = norm(part.norms["norm_post"], total) if "norm_post" in part.norms else total
        if not plan.parallel:
            sites[f"{part.name}.state"] = x
        total = None
    sites["state"] = x
    return sites


def local(
    plan: Block, seen: Mapping[str, torch.Tensor], x: torch.Tensor, branch: BranchFunction | None, norm: NormFunction
) -> dict[str, torch.Tensor]:
    """What every site of a layer should be, operator by operator, on the values that a candidate gave.

    seen: the candidate's values by `branch.site`, in the dtype of the comparison; x: the state that enters the layer.
    Nothing accumulates: each site is computed from the candidate's own inputs to it. Where the candidate lacks an
    input, what the reference makes of the inputs before it stands in. `branch` None: branch functions are not ours.
    """
    first = x
    found: dict[str, torch.Tensor] = {}

    def at(site: str) -> torch.Tensor:
        return seen[site] if site in seen else found[site]

    terms: list[torch.Tensor] = []
    for i, part in enumerate(plan.branches):
        name, last = part.name, not plan.parallel or i == len(plan.branches) - 1
        given = entering(plan, part, seen, first) if i and not plan.parallel else None
        source = x if given is None else given
        inside = source if part.reads in ("state", EARLIER) else at(part.reads)
        if "norm_in" in part.norms:
            found[f"{name}.norm_in"] = norm(part.norms["norm_in"], source)
            inside = at(f"{name}.norm_in")
        if not terms:
            shortcut = inside if plan.normalised_shortcut or part.normalised else x
            found[f"{name}.residual"] = part.shortcut_scale * shortcut
            terms.append(at(f"{name}.residual"))
        if branch is not None:
            found[f"{name}.branch"] = branch(name, inside)
        elif f"{name}.branch" not in seen:
            return found
        core = at(f"{name}.branch")
        if "norm_out" in part.norms:
            found[f"{name}.norm_out"] = norm(part.norms["norm_out"], core)
            core = at(f"{name}.norm_out")
        found[f"{name}.update"] = core if part.scale == 1 else part.scale * core
        terms.append(at(f"{name}.update"))
        if not last:
            continue
        found[f"{name}.sum"] = sum(terms[1:], terms[0])
        total = at(f"{name}.sum")
        found[f"{name}.state"] = norm(part.norms["norm_post"], total) if "norm_post" in part.norms else total
        if plan.parallel:
            found["state"] = found.pop(f"{name}.state")
        else:
            x, found["state"] = at(f"{name}.state"), found[f"{name}.state"]
        terms = []
    return found


def read_by(plan: Block, part: BranchPlan, seen: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor | None:
    """What a candidate's branch function reads; None where the candidate does not give it.

    x: the state that enters the layer.
    """
    if "norm_in" in part.norms:
        return seen.get(f"{part.name}.norm_in")
    return entering(plan, part, seen, x) if part.reads in ("state", EARLIER) else seen.get(part.reads)


def entering(plan: Block, part: BranchPlan, seen: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor | None:
    """The state that enters a branch: the layer's own, or the one that the branch before it leaves.

    A plain shortcut is that state too, where a candidate shows the one and not the other.
    """
    place = plan.branches.index(part)
    if place == 0 or plan.parallel or part.reads == EARLIER:
        return x
    left = seen.get(f"{plan.branches[place - 1].name}.state")
    return seen.get(f"{part.name}.residual") if left is None and plain(plan, part) else left


def plain(plan: Block, part: BranchPlan) -> bool:
    """Whether the shortcut of a branch is the state that enters it, as it is."""
    return part.shortcut_scale == 1 and not plan.normalised_shortcut and not part.normalised


def source_of(plan: Block, site: str, seen: Mapping[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor | None:
    """What the norm at a site (`self_attention.norm_in`) reads, as the candidate gives it."""
    name, _, what = site.rpartition(".")
    part = plan.branch(name)
    if what == "norm_in":
        return entering(plan, part, seen, x)
    return seen.get(f"{name}.branch" if what == "norm_out" else f"{name}.sum")


def names(plan: Block) -> list[str]:
    """Every site that a layer has, by `branch.site`, in the order in which they are executed."""
    found: list[str] = []
    for i, part in enumerate(plan.branches):
        last = not plan.parallel or i == len(plan.branches) - 1
        found += [f"{part.name}.residual"] if i == 0 or not plan.parallel else []
        found += [f"{part.name}.norm_in"] if "norm_in" in part.norms else []
        found += [f"{part.name}.branch"] + ([f"{part.name}.norm_out"] if "norm_out" in part.norms else [])
        found += [f"{part.name}.update"] + ([f"{part.name}.sum"] if last else [])
        found += [] if plan.parallel else [f"{part.name}.state"]
    return [*found, "state"]
