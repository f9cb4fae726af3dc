"""Why a manifest cannot be executed in full, in one line; nothing where it can."""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.records.bound import BoundManifest
from blockaudit.reference import assembly
from blockaudit.reference.assembly import UnresolvedError
from blockaudit.reference.reader import finite
from blockaudit.reference.spec import (
    AttentionSpec,
    RoutingSpec,
    attention_spec,
    feed_forward_spec,
    head_activation,
    inputs_spec,
)

# Tensors that a branch must have, as alternatives of which one is whole.
_ATTENTION = (("qkv", "o"), ("q", "k", "v", "o"), ("q", "kv", "o"), ("kv_a", "kv_b", "o"))
_PERCEPTRON = (("up", "down"), ("gate_up", "down"))
_MIXTURE = (("router", "expert.up", "expert.down"), ("router", "expert.gate_up", "expert.down"))


def refusal(bound: BoundManifest) -> str:
    """What a full reference lacks in the manifest, in one line; empty where it lacks nothing."""
    try:
        return next(_missing(bound), "")
    except UnresolvedError as error:
        return str(error)


def _missing(bound: BoundManifest) -> Iterator[str]:
    before = ""
    for span in (s for s in bound.spans if not s.ignored):
        if span.run is None:
            yield f"{span.name}.layers is not known"
            continue
        yield from _embedding(bound, span.name)
        for layer in _one_of_each(span.first, span.run, span.kinds):
            plan = assembly.block(bound, span.name, layer)
            if plan.update != "add":
                yield f"{span.name}.residual.update is {plan.update}"
            for part in plan.branches:
                owner = assembly.owner(bound, span.name, layer, part.name)
                yield from _branch(bound, owner, part.kind, before)
        before = span.name
    yield from _numbers(bound)
    if any(e.role == "head.dense" and e.what == "part" for e in bound.expected):
        head_activation(bound)


def _numbers(bound: BoundManifest) -> Iterator[str]:
    """Numbers of the contract that norms and logits are computed with."""
    for field, found in bound.fields.items():
        if field.endswith((".epsilon", ".softcap")) and found.known and not finite(found.value or 0):
            yield f"{field} is {found.value!r}: expected a number"
        if field.endswith(".present") and not found.known:
            yield f"{field} depends on config.json, which does not give it"
    if "logits.scale" in bound.fields:
        assembly.number(bound, "logits.scale")


def _one_of_each(first: int, run: int, kinds: tuple[tuple[str, tuple[int, ...]], ...]) -> list[int]:
    """A layer of every kind."""
    if not kinds:
        return [first] if run else []
    return [layers[0] for _, layers in kinds if layers]


def _embedding(bound: BoundManifest, stack: str) -> Iterator[str]:
    roles = {e.role for e in bound.expected if e.owner == f"{stack}.embedding"}
    if "tokens" not in roles:
        yield f"{stack}.embedding: no tensor holds the tokens"
    elif roles & {"positions", "types", "project_in"} and f"{stack}.inputs.positions" not in bound.functions:
        yield f"{stack}.inputs: the manifest does not say how positions are counted"
    elif unknown := roles - {"tokens", "positions", "types", "project_in", "project_out"} - _biases(roles):
        yield f"{stack}.embedding: the reference has no use for {', '.join(sorted(unknown))}"
    inputs_spec(bound, stack)
    assembly.number(bound, f"{stack}.embedding.scale")


def _biases(roles: set[str]) -> set[str]:
    return {r for r in roles if r.endswith(".bias") and r.removesuffix(".bias") in roles}


def _branch(bound: BoundManifest, owner: str, kind: str, memory: str) -> Iterator[str]:
    roles = {e.role for e in bound.expected if e.owner == owner}
    if "attention" in kind:
        spec = attention_spec(bound, owner)
        if "cross" in kind and not memory:
            yield f"{owner}: reads a memory that no stack gives"
        if spec.max_distance is not None and not _has(bound, f"{owner.partition('.')[0]}.layer", "relative_bias"):
            yield f"{owner}: no tensor holds the relative bias"
        if "qkv" in roles and spec.fused is None:
            yield f"{owner}.fused: the layout of the projection is not given"
        yield from _whole(owner, roles, _ATTENTION)
        yield from _fits(bound, owner, spec)
    else:
        spec = feed_forward_spec(bound, owner)
        if roles & {"gate_up", "expert.gate_up"} and spec.fused is None:
            yield f"{owner}.fused: the layout of the projection is not given"
        yield from _whole(owner, roles, _MIXTURE if spec.routing is not None else _PERCEPTRON)
        yield from _experts(bound, owner, spec.routing)


def _fits(bound: BoundManifest, owner: str, spec: AttentionSpec) -> Iterator[str]:
    """Projections that are not as wide as their heads."""
    q, k, v = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.kv_heads * spec.value_dim
    widths = {"q": q, "q_b": q, "k": k, "v": v, "kv": k + v, "qkv": q + k + v}
    widths["kv_b"] = spec.heads * ((spec.nope_dim or 0) + spec.value_dim)
    for e in bound.expected:
        if e.owner == owner and e.role in widths and len(e.shape) == 2:
            found = e.shape[1] if e.layout == "in_out" else e.shape[0]
            if found is not None and found != widths[e.role]:
                yield f"{owner}: {e.template} has {found} outputs, and its heads take {widths[e.role]}"


def _experts(bound: BoundManifest, owner: str, routing: RoutingSpec | None) -> Iterator[str]:
    """What the number of experts does not allow."""
    router = next((e for e in bound.expected if e.owner == owner and e.role == "router"), None)
    if routing is None or router is None or not router.shape or router.shape[0] is None:
        return
    experts, groups = router.shape[0], routing.groups or 1
    if not groups or experts % groups:
        yield f"{owner}.routing: {experts} experts are not {groups} groups of one size"
    elif routing.groups is not None and (routing.top_groups or 0) not in range(1, groups + 1):
        yield f"{owner}.routing.top_groups is {routing.top_groups}, of {groups} groups"
    elif routing.top_k > (experts // groups) * (routing.top_groups or 1):
        yield f"{owner}.routing.top_k is {routing.top_k}, of {experts} experts"
    elif routing.groups is not None and experts // groups < 2:
        yield f"{owner}.routing: a group needs two experts"


def _has(bound: BoundManifest, owner: str, role: str) -> bool:
    return any(e.owner == owner and e.role == role for e in bound.expected)


def _whole(owner: str, roles: set[str], choices: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    if not any(roles.issuperset(choice) for choice in choices):
        yield f"{owner}: tensors {', '.join(sorted(roles)) or 'none'}; expected {' + '.join(choices[0])} or the like"
