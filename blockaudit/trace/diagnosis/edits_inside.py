"""Edits of what a branch computes: its function, its inner norms, its biases, and whose weights it runs with.

Operators inside a branch have no names of their own: these are tried one by one, and only what makes the branch agree
with the candidate's is an edit at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace
from torch import Tensor

from blockaudit.graph.norms import Norm
from blockaudit.graph.steps import Step
from blockaudit.manifest.view import owner_of
from blockaudit.records.bound import BoundManifest, ExpectedTensor, Resolved
from blockaudit.reference import assembly
from blockaudit.reference.activations import ACTIVATIONS
from blockaudit.reference.assembly import Block, BranchPlan, NormSite
from blockaudit.trace.diagnosis.edits import Edit, as_site, at_norm, differences
from blockaudit.trace.diagnosis.held import Held
from blockaudit.trace.scene import Seen

Rebind = Callable[[BoundManifest], BoundManifest]
Bundle = tuple[Edit, ...]  # edits that are tried together
_THETAS = (1e4, 1e5, 2.5e5, 5e5, 1e6, 1e7)
_EXCHANGED = (("gate", "up"), ("q", "k"), ("k", "v"), ("q", "v"), ("expert.gate", "expert.up"))


def inside(seen: Seen, part: BranchPlan, held: Held | None) -> Iterator[Bundle]:
    """What may make a branch what the candidate's is, likeliest first."""
    bound, number = seen.scene.bound, _number(seen)
    layer = seen.segment.layer
    step = next((s for s in layer.steps if s.name == part.name), None) if layer is not None else None
    yield from _inner_norms(bound, part, step, number, held, seen.scene.low)
    if "attention" in part.kind:
        yield from _attention(bound, part, step, number, held)
    else:
        yield from _feed_forward(bound, part)
    yield from _biases(bound, part)
    for one, other in _EXCHANGED:
        if _roles(bound, part.owner) >= {one, other}:
            yield (Edit(f"{part.owner}.{one}.module", one, other, rebind=exchanged(part.owner, one, other)),)
    for other in layers_like(bound, part, seen):
        yield (
            Edit(
                f"{part.owner}.weights", f"layers.{number}", f"layers.{other}", elsewhere=((part.name, other),),
                evidence=f"the branch runs with the weights of layer {other}",
            ),
        )  # fmt: skip


def whole_layers(seen: Seen, block: Block) -> Iterator[Edit]:
    """Another layer's weights in all of this one's places: of every layer that has the same branches."""
    number, bound = _number(seen), seen.scene.bound
    first = layers_like(bound, block.branches[0], seen) if block.branches else []
    for other in (n for n in first if all(n in layers_like(bound, p, seen) for p in block.branches[1:])):
        norms = assembly.block(bound, block.stack, other)

        def apply(b: Block, norms: Block = norms) -> Block:
            for part in norms.branches:
                for site, norm in part.norms.items():
                    b = at_norm(part.name, site, _with_weights(norm))(b)
            return b

        yield Edit(
            f"{block.stack}.layers.weights", f"layers.{number}", f"layers.{other}", apply,
            f"layer {number} runs with the weights of layer {other}",
            elsewhere=tuple((p.name, other) for p in block.branches),
        )  # fmt: skip


def _with_weights(norm: NormSite) -> Callable[[NormSite], NormSite]:
    return lambda site: replace(site, weight=norm.weight, bias=norm.bias, state=norm.state)


def layers_like(bound: BoundManifest, part: BranchPlan, seen: Seen) -> list[int]:
    """The other layers of the stack that have this branch."""
    layer = seen.segment.layer
    span = next((s for s in bound.spans if layer is not None and s.name == layer.stack), None)
    if span is None or span.run is None or span.stored != span.run:
        return []
    every = range(span.first, span.first + span.run)
    return [n for n in every if n != _number(seen) and assembly.owner_in(bound, span.name, n, part.name) == part.owner]


def _number(seen: Seen) -> int:
    assert seen.segment.layer is not None
    return seen.segment.layer.number


def _roles(bound: BoundManifest, owner: str) -> set[str]:
    return {e.role for e in bound.expected if e.owner == owner}


def function(field: str, declared: Any, to: Any) -> Edit:
    """A function of the manifest with another value."""
    return Edit(field, declared, to, rebind=lambda b: replace(b, functions={**b.functions, field: Resolved(to)}))


def contract(field: str, declared: Any, to: Any) -> Edit:
    """A contract field of the manifest with another value."""
    return Edit(field, declared, to, rebind=lambda b: replace(b, fields={**b.fields, field: Resolved(to)}))


# -- inner norms ----------------------------------------------------------------------------------------------------


def _inner_norms(
    bound: BoundManifest, part: BranchPlan, step: Step | None, number: int, held: Held | None, casts: bool
) -> Iterator[Bundle]:
    """Norms inside the branch as its operators run them: all of them together, then each alone."""
    if step is None or held is None:
        return
    begin = f"{part.owner}.inner."
    fields = [f.removesuffix(".present") for f in bound.fields if f.startswith(begin) and f.endswith(".present")]
    sites = {f: s for f in fields if (s := assembly.norm_site(bound, f, part.owner.partition(".")[0], number))}
    found: list[Edit] = []
    for field, declared in sites.items():
        norm = _labelled(step.branch.inner, declared, len(sites))
        if norm is None:
            found.append(contract(f"{field}.present", True, False))
            continue
        theirs = as_site(field, norm, declared, held)
        for name, mine, value, _ in differences(declared, theirs.spec, theirs.weight, theirs.bias, casts):
            if name == "module":
                continue
            found.append(_inner_field(field, name, mine, value, theirs))
    if found:
        yield tuple(found)
    yield from ((edit,) for edit in found)


def _labelled(norms: Sequence[Norm], declared: NormSite, count: int) -> Norm | None:
    del count
    return next((n for n in norms if n.weight == declared.weight), None)


def _inner_field(field: str, name: str, declared: Any, value: Any, theirs: NormSite) -> Edit:
    changed = {name: value}
    if name == "family":
        changed |= {"center": theirs.spec.center, "variance_correction": theirs.spec.variance_correction}

    def rebind(b: BoundManifest) -> BoundManifest:
        fields = b.fields | {f"{field}.{n}": Resolved(v) for n, v in changed.items()}
        gone = "weight" if (name, value) == ("scale", "none") else "bias" if (name, value) == ("bias", False) else None
        kept = tuple(e for e in b.expected if not (e.owner == field and e.role == gone))
        return replace(b, fields=fields, expected=kept)

    return Edit(f"{field}.{name}", declared, value, rebind=rebind)


# -- attention ------------------------------------------------------------------------------------------------------


def _attention(
    bound: BoundManifest, part: BranchPlan, step: Step | None, number: int, held: Held | None
) -> Iterator[Bundle]:
    owner = part.owner
    kind = str(bound.fields[f"{owner}.kind"].value)
    other = {"causal_self_attention": "self_attention", "self_attention": "causal_self_attention"}.get(kind)
    if other is not None:
        yield (Edit(f"{owner}.kind", kind, other, rebind=_of_kind(owner, other)),)
    cap = bound.fields.get(f"{owner}.softcap")
    caps = [step.branch.softcap] if step is not None else []
    for value in dict.fromkeys((*caps, None)):
        if value != (cap.value if cap is not None else None):
            yield (contract(f"{owner}.softcap", cap.value if cap is not None else None, value),)
    yield from ((e,) for e in _windows(bound, owner, number))
    yield from ((e,) for e in _scales(bound, owner))
    yield from ((e,) for e in _rotaries(bound, owner, held))


def _of_kind(owner: str, kind: Any) -> Rebind:
    """The manifest with a branch of another kind."""

    def rebind(b: BoundManifest) -> BoundManifest:
        stacks = tuple(
            replace(
                s, branches=tuple(replace(x, kind=kind) if owner_of(x, s) == owner else x for x in s.branches)
            )
            for s in b.manifest.stacks
        )  # fmt: skip
        fields = {**b.fields, f"{owner}.kind": Resolved(kind)}
        return replace(b, manifest=replace(b.manifest, stacks=stacks), fields=fields)

    return rebind


def _windows(bound: BoundManifest, owner: str, number: int) -> Iterator[Edit]:
    window, layers = bound.functions.get(f"{owner}.window"), bound.functions.get(f"{owner}.window_layers")
    if window is None or not isinstance(window.value, int) or layers is None:
        return
    if number in layers.value:
        yield function(f"{owner}.window", window.value, None)
        yield from (
            function(f"{owner}.window", window.value, window.value + d) for d in (1, -1) if window.value + d > 0
        )
    else:
        yield Edit(
            f"{owner}.window", None, window.value,
            rebind=lambda b: replace(
                b, functions={**b.functions, f"{owner}.window_layers": Resolved((*layers.value, number))}
            ),
        )  # fmt: skip


def _scales(bound: BoundManifest, owner: str) -> Iterator[Edit]:
    field = f"{owner}.scale"
    dim, heads = bound.functions.get(f"{owner}.head_dim"), bound.functions.get(f"{owner}.heads")
    if field not in bound.functions or dim is None or not isinstance(dim.value, int):
        return
    size, count = dim.value, heads.value if heads is not None and isinstance(heads.value, int) else 1
    declared = bound.functions[field].value or size**-0.5
    for value in dict.fromkeys((size**-0.5, 1.0, 1.0 / size, (size * count) ** -0.5, 1.0 / declared, declared**2)):
        if abs(value - declared) > 1e-9:
            yield function(field, declared, value)


def _rotaries(bound: BoundManifest, owner: str, held: Held | None) -> Iterator[Edit]:
    theta, pairing = bound.functions.get(f"{owner}.rotary.theta"), bound.functions.get(f"{owner}.rotary.pairing")
    if theta is None or pairing is None:
        return
    other = "interleaved" if pairing.value == "half" else "half"
    yield function(f"{owner}.rotary.pairing", pairing.value, other)
    for value in dict.fromkeys((*_bases(held), *_THETAS)):
        if value != theta.value:
            yield function(f"{owner}.rotary.theta", theta.value, value)

    def without(b: BoundManifest) -> BoundManifest:
        kept = {k: v for k, v in b.functions.items() if not k.startswith(f"{owner}.rotary.")}
        return replace(b, functions=kept)

    yield Edit(f"{owner}.rotary", pairing.value, None, rebind=without)


def _bases(held: Held | None) -> Iterator[float]:
    """Thetas of the candidate's own tables of frequencies theta^(-2 i / dim)."""
    for table in held.constants.values() if held is not None else ():
        theta = _base(table)
        if theta is not None:
            yield theta


def _base(table: Tensor) -> float | None:
    if table.dim() != 1 or not table.is_floating_point() or len(table) < 2 or float(table[0]) != 1.0:
        return None
    rows = table.double()
    if not bool((rows > 0).all()) or float(rows[1]) >= 1:
        return None
    theta = float(rows[1] ** (-len(rows)))
    again = theta ** (-rows.new_tensor(range(len(rows))) / len(rows))
    return float(f"{theta:.6g}") if bool(((again - rows).abs() <= 1e-5 * rows).all()) else None


# -- feed-forward ---------------------------------------------------------------------------------------------------


def _feed_forward(bound: BoundManifest, part: BranchPlan) -> Iterator[Bundle]:
    field = f"{part.owner}.activation"
    declared = bound.functions.get(field)
    if declared is not None:
        named = dict[Any, str]()
        for name, formula in ACTIVATIONS.items():
            named.setdefault(formula, name)
        for formula, name in named.items():
            if ACTIVATIONS.get(declared.value) is not formula:
                yield (function(field, declared.value, name),)
    routing = f"{part.owner}.routing."
    normalise, top = bound.functions.get(f"{routing}normalise"), bound.functions.get(f"{routing}top_k")
    if normalise is not None:
        yield (function(f"{routing}normalise", bool(normalise.value), not normalise.value),)
    if top is not None and isinstance(top.value, int):
        for count in range(1, 2 * top.value + 1):
            if count != top.value:
                yield (function(f"{routing}top_k", top.value, count),)
    score = bound.functions.get(f"{routing}score")
    if score is not None:
        yield (function(f"{routing}score", score.value, "sigmoid" if score.value == "softmax" else "softmax"),)


# -- tensors --------------------------------------------------------------------------------------------------------


def _biases(bound: BoundManifest, part: BranchPlan) -> Iterator[Bundle]:
    """Biases that are not run: each alone, then all of them."""
    roles = sorted(r for r in _roles(bound, part.owner) if r.endswith(".bias"))
    lost = [_lost(part.owner, r) for r in roles]
    yield from ((e,) for e in lost)
    if len(lost) > 1:
        yield tuple(lost)


def _lost(owner: str, role: str) -> Edit:
    field = f"{owner}.bias.{role.removesuffix('.bias')}"

    def rebind(b: BoundManifest) -> BoundManifest:
        return replace(b, expected=tuple(e for e in b.expected if not (e.owner == owner and e.role == role)))

    return Edit(field, True, False, rebind=rebind)


def exchanged(owner: str, one: str, other: str) -> Rebind:
    """The manifest with two roles of a branch in each other's place, their biases with them."""

    def named(e: ExpectedTensor) -> ExpectedTensor:
        stem, bias = (e.role.removesuffix(".bias"), ".bias") if e.role.endswith(".bias") else (e.role, "")
        if e.owner != owner or stem not in (one, other):
            return e
        return replace(e, role=(other if stem == one else one) + bias)

    return lambda b: replace(b, expected=tuple(named(e) for e in b.expected))
