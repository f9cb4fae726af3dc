"""The contract fields that a manifest declares, by name (`decoder.self_attention.norm_in.epsilon`)."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from blockaudit.manifest.values import Resolver
from blockaudit.records.bound import Resolved
from blockaudit.records.manifest import Branch, Manifest, Norm, Residual, Scale, Stack, Subset

# A site says where its norm stands; `placement` can only repeat it.
PLACEMENT = {"norm_in": "pre_branch", "norm_out": "post_branch", "norm_post": "post_add", "unplaced": None}
# Fields of a norm that are part of the contract at every site; the others only where the manifest gives them.
ALWAYS = (
    "family", "placement", "reduction_axes", "epsilon", "epsilon_location", "center", "scale", "scale_offset", "bias",
    "work_dtype", "cast_order",
)  # fmt: skip
SOMETIMES = (
    "variance_correction", "algorithm", "groups", "couples", "padding_policy", "persistent_state", "subset", "instance",
    "owner",
)  # fmt: skip


def inherited(norm: Norm, default: Norm, name: str) -> Any:
    """A field of a site: its own, else the manifest's `norm`, else unset."""
    own = getattr(norm, name)
    return own if own is not UNSET else getattr(default, name)


def norm_key(norm: Norm, default: Norm, role: str) -> str:
    """The whole key of a norm's `weight`, `bias` or running statistic, as a template."""
    names = inherited(norm, default, "names")
    return f"{norm.module}.{role if names is UNSET else names.get(role, role)}"


def norm_fields(site: str, norm: Norm, default: Norm, resolver: Resolver) -> dict[str, Resolved]:
    """Every field of one norm site, resolved."""
    found: dict[str, Resolved] = {}
    for name in ALWAYS + SOMETIMES:
        value = inherited(norm, default, name)
        if name == "placement" and norm.placement is UNSET:
            value = PLACEMENT.get(site, "none")
        if value is UNSET or value is None:
            # Null is how a draft says that its witness could not see the field.
            if name in ALWAYS:
                found[name] = Resolved(None, known=False)
            continue
        # A subset is a record of literals: it is compared whole.
        found[name] = Resolved(msgspec.to_builtins(value)) if isinstance(value, Subset) else resolver.value(value)
    return found


def branch_fields(owner: str, branch: Branch, resolver: Resolver) -> dict[str, Resolved]:
    """What a branch is and reads."""
    fields = {f"{owner}.kind": Resolved(branch.kind), f"{owner}.reads": resolver.value(branch.reads)}
    fields |= {f"{owner}.sources.{name}": Resolved(source) for name, source in branch.sources.items()}
    if branch.softcap is not None:
        fields[f"{owner}.softcap"] = resolver.value(branch.softcap)
    if "attention" in branch.kind or branch.score_route != "none":
        fields[f"{owner}.score_route"] = Resolved(branch.score_route)
    return fields


def stack_fields(
    stack: Stack, branches: list[Branch], manifest: Manifest, resolver: Resolver, kinds: dict[str, tuple[int, ...]]
) -> dict[str, Resolved]:
    """What a stack does around its branches (those that config switches on): order, residual, embedding, logits."""
    name = stack.name
    fields: dict[str, Resolved] = {f"{name}.layers": resolver.value(stack.layers)}
    orders = _orders(branches, kinds)
    for kind, order in orders.items():
        fields[f"{name}[{kind}].branch_order" if kind else f"{name}.branch_order"] = Resolved(order or None)
    fields[f"{name}.parallel"] = resolver.value(stack.parallel)
    fields[f"{name}.embedding.scale"] = resolver.value(stack.embedding_scale)
    residual = manifest.residual if stack.residual is UNSET else stack.residual
    fields |= {f"{name}.residual.{k}": v for k, v in _residual(branches, residual, resolver).items()}
    if stack is manifest.stacks[-1] or stack.logit_softcap is not None or stack.logit_scale != 1.0:
        fields["logits.scale"] = resolver.value(stack.logit_scale)
        fields["logits.softcap"] = resolver.value(stack.logit_softcap)
    crossed = any(b.name == "cross_attention" for b in branches)
    for owner, dropout in manifest.dropout.items():
        if owner == "cross_attention_output" and not crossed:
            continue
        fields[f"{name}.dropout.{owner}.p"] = resolver.value(dropout.p)
        fields[f"{name}.dropout.{owner}.position"] = Resolved(dropout.position)
        fields[f"{name}.dropout.{owner}.granularity"] = Resolved(dropout.granularity)
        fields[f"{name}.dropout.{owner}.scaling"] = Resolved(dropout.scaling)
        fields[f"{name}.dropout.{owner}.schedule"] = Resolved(dropout.schedule)
    # Null is how a draft says that its witness could not see the field; a cap alone may truly be none.
    return {
        n: v if v.value is not None or n.endswith("softcap") else replace(v, known=False) for n, v in fields.items()
    }


def _orders(branches: list[Branch], kinds: dict[str, tuple[int, ...]]) -> dict[str, list[str]]:
    """Branch kinds in order, by layer kind where layers differ; kinds that no layer has are left out."""
    orders = {
        kind: [b.kind for b in branches if not b.layer_kinds or kind in b.layer_kinds]
        for kind, layers in (kinds or {"": (0,)}).items()
        if layers
    }
    if len({tuple(o) for o in orders.values()}) == 1:
        return {"": next(iter(orders.values()))}
    return orders


def _residual(branches: list[Branch], residual: Residual, resolver: Resolver) -> dict[str, Resolved]:
    names = ["shortcut_scale", "attention_branch_scale", "mlp_branch_scale"]
    if any(b.name == "cross_attention" for b in branches):
        names.insert(2, "cross_attention_branch_scale")
    fields = {
        "shortcut": resolver.value(residual.shortcut),
        "shortcut_source": resolver.value(residual.shortcut_source),
        "update": resolver.value(residual.update),
    }
    for name in names:
        scale = getattr(residual, name)
        if isinstance(scale, Scale):
            fields[f"{name}.granularity"] = Resolved(scale.granularity)
            fields[f"{name}.learned"] = Resolved(scale.learned)
            fields[f"{name}.init"] = resolver.value(scale.init)
            scale = scale.value
        fields[name] = resolver.value(scale)
    if residual.dtype is not None:
        fields["dtype"] = resolver.value(residual.dtype)
    return fields
