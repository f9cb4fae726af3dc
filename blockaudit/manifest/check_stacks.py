"""Stacks, branches, residual and dropout of a block manifest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET

from blockaudit.manifest.check_norms import WORK_DTYPES
from blockaudit.manifest.check_values import scales
from blockaudit.manifest.core import SITES
from blockaudit.manifest.view import View
from blockaudit.records.manifest import Branch, Dropout, Manifest, Norm, Residual, Scale, Stack

INPUTS = ("state", "memory")


def stacks(manifest: Manifest) -> Iterator[str]:
    """Findings on the stacks and on what they inherit."""
    view = View(manifest)
    names = [s.name for s in manifest.stacks]
    yield from (f"stacks: {name!r} is given twice" for name in dict.fromkeys(names) if names.count(name) > 1)
    if manifest.state_layout and "model" not in manifest.state_layout:
        yield f"state_layout: no model axis in [{', '.join(manifest.state_layout)}]"
    yield from _order(manifest, view)
    yield from _core_norms(manifest, view)
    yield from _residual("residual", manifest.residual, manifest, manifest.stacks, view)
    for owner, dropout in manifest.dropout.items():
        yield from (f"dropout.{owner}: {said}" for said in _dropout(owner, dropout, manifest, view))
    for stack in manifest.stacks:
        yield from (f"{stack.name}: {said}" for said in _stack(stack, view))
        for branch in stack.branches:
            yield from (f"{stack.name}.{branch.name}: {said}" for said in _branch(branch, stack, view))
        if stack.residual is not UNSET:
            yield from _residual(f"{stack.name}.residual", stack.residual, manifest, [stack], view)


def _order(manifest: Manifest, view: View) -> Iterator[str]:
    """`branch_order` is what the branches of the stacks say, one after the other."""
    given = manifest.branch_order
    for stack in manifest.stacks:
        if stack.ignored:
            continue
        for kind, layers in view.kinds(stack).items():
            name = f"{stack.name}[{kind}]" if kind else stack.name
            wanted = given if isinstance(given, list) else given.get(name, given.get(stack.name))
            found = [b.kind for b in view.branches(stack, kind)]
            if wanted and layers and found and wanted not in (found, _with_options(stack, kind)):
                yield f"branch_order: [{', '.join(wanted)}] for {name}, whose branches are [{', '.join(found)}]"
    if isinstance(given, dict):
        known = {n for s in manifest.stacks for n in (s.name, *(f"{s.name}[{k}]" for k in s.layer_kinds))}
        yield from (f"branch_order: {name!r} is no stack" for name in given if name not in known)


def _with_options(stack: Stack, kind: str) -> list[str]:
    """The kinds of all branches, those that a default leaves out too; of alternatives the first."""
    first = {b.name: b.kind for b in reversed(stack.branches) if not b.layer_kinds or kind in b.layer_kinds}
    return [first[name] for name in dict.fromkeys(b.name for b in stack.branches) if name in first]


def _core_norms(manifest: Manifest, view: View) -> Iterator[str]:
    """The core's own words on placement and final norm, against the sites."""
    placement = manifest.norm.placement
    allowed = SITES.get(view.value(placement) if not isinstance(placement, str) else placement)
    final = manifest.final_norm
    for stack in manifest.stacks:
        sites = {s for b in stack.branches for s in b.norms if not s.startswith("inner")}
        if allowed is not None and not sites <= set(allowed):
            odd = ", ".join(sorted(sites - set(allowed)))
            yield f"norm.placement: {placement}, and {stack.name} has {odd}"
        if final is not None and stack.final_norm is None and len(manifest.stacks) == 1:
            yield f"final_norm: declared, and {stack.name} has none"
        family = final.family if isinstance(final, Norm) else final
        own = UNSET if stack.final_norm is None else stack.final_norm.family
        if isinstance(family, str) and isinstance(own, str) and family != own:
            yield f"final_norm: {family}, and {stack.name}.final_norm is {own}"


def _stack(stack: Stack, view: View) -> Iterator[str]:
    yield from _kinds(stack, view)
    yield from _counts(stack, view)
    for name, value in (("embedding_scale", stack.embedding_scale), ("logit_scale", stack.logit_scale)):
        if view.value(value) == 0:
            yield f"{name}: 0 leaves nothing"
    softcap = view.value(stack.logit_softcap)
    if isinstance(softcap, int | float) and softcap <= 0:
        yield f"logit_softcap: {softcap} is not positive"
    if stack.embedding_norm is not None and stack.embedding_norm.module is UNSET and stack.embedding:
        yield "embedding_norm: its module is not named, and the embedding's are"
    if stack.ignored and (stack.final_norm is not None or stack.unplaced):
        yield "ignored: layers that are not built have no final norm and nothing to place"
    templates = [t.module or t.key or "" for t in (*stack.embedding, *stack.tensors)]
    if any("{l}" in t for t in templates[: len(stack.embedding)]):
        yield "embedding: a template with {l} belongs to the layers"


def _kinds(stack: Stack, view: View) -> Iterator[str]:
    """Every layer is of one kind, and each kind's branches agree with how they are added."""
    kinds = view.kinds(stack)
    for layer in view.layers(stack):
        mine = [kind for kind, layers in kinds.items() if layer in layers]
        if len(mine) != 1:
            yield f"layer_kinds: layer {layer} is of {' and '.join(mine) or 'no kind'}; each is of exactly one"
            break
    if view.value(stack.parallel) is not True:
        return
    for kind in kinds:
        branches = view.branches(stack, kind)
        if len(branches) == 1:
            yield "parallel: one branch has nothing beside it"
        if any("norm_post" in view.norms(b, stack) for b in branches):
            yield "parallel: one add takes every branch, so that no branch has a norm after an add of its own"


def _counts(stack: Stack, view: View) -> Iterator[str]:
    for name, value in (
        ("layers", stack.layers), ("first_layer", stack.first_layer), ("stored_layers", stack.stored_layers)
    ):  # fmt: skip
        count = view.resolved(value).value
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
            yield f"{name}: expected a whole number, found {count!r}"
    run, stored = view.resolved(stack.layers).value, view.resolved(stack.stored_layers).value
    if isinstance(run, int) and isinstance(stored, int) and stored > run:
        yield f"stored_layers: {stored} on disk, and only {run} are run"


def _branch(branch: Branch, stack: Stack, view: View) -> Iterator[str]:
    known = {f"{b.name}.{site}" for b in stack.branches for site in b.norms}
    read = branch.reads if isinstance(branch.reads, str) else view.resolved(branch.reads).value
    if read not in INPUTS and read not in known:
        yield f"reads: {read!r} is neither {' nor '.join(INPUTS)} nor a norm of {stack.name}"
    for name, source in branch.sources.items():
        if source not in INPUTS and source not in known:
            yield f"sources.{name}: {source!r} is neither {' nor '.join(INPUTS)} nor a norm of {stack.name}"
    if branch.kind == "cross_attention" and branch.sources and "memory" not in branch.sources.values():
        yield "sources: cross attention reads no memory"
    yield from (
        f"layer_kinds: {k!r} is no kind of {stack.name}" for k in branch.layer_kinds if k not in stack.layer_kinds
    )
    softcap = view.value(branch.softcap)
    if isinstance(softcap, int | float) and softcap <= 0:
        yield f"softcap: {softcap} is not positive"
    twins = [b for b in stack.branches if b.name == branch.name]
    if len(twins) > 1 and any(b.when is None and not b.layer_kinds for b in twins):
        yield "name: given twice, and nothing (when, layer_kinds) tells which is meant"


def _residual(place: str, residual: Residual, manifest: Manifest, mine: list[Stack], view: View) -> Iterator[str]:
    for name, scale in scales(residual):
        yield from (f"{place}.{name}: {said}" for said in _scale(name, scale))
    value = residual.shortcut_scale.value if isinstance(residual.shortcut_scale, Scale) else residual.shortcut_scale
    factor = view.value(value)
    if residual.shortcut == "identity" and factor is not None and factor != 1:
        yield f"{place}.shortcut: identity, and shortcut_scale is {factor}; a constant says so"
    if residual.shortcut is None and manifest.witness == "declared":
        yield f"{place}.shortcut: not claimed; only a draft may leave it open"
    if residual.update is None and manifest.witness == "declared":
        yield f"{place}.update: not claimed; only a draft may leave it open"
    source = residual.shortcut_source
    carried = source if isinstance(source, str) else view.value(source)
    normed = any("norm_in" in b.norms for s in mine for b in s.branches)
    if carried == "normalised_state" and not normed:
        yield f"{place}.shortcut_source: normalised_state, and no branch has a norm_in"
    if residual.update == "interpolate_retract" and not isinstance(residual.attention_branch_scale, Scale):
        yield f"{place}.update: interpolation needs a rate; declare attention_branch_scale with its granularity"
    dtype = view.value(residual.dtype) if not isinstance(residual.dtype, str) else residual.dtype
    if dtype is not None and dtype not in WORK_DTYPES:
        yield f"{place}.dtype: expected one of {', '.join(WORK_DTYPES)}, found {dtype}"
    cross = any(b.name == "cross_attention" for s in mine for b in s.branches)
    if residual.cross_attention_branch_scale not in (1.0, None) and not cross:
        yield f"{place}.cross_attention_branch_scale: no stack has cross attention"


def _scale(name: str, scale: Any) -> Iterator[str]:
    if not isinstance(scale, Scale):
        return
    if scale.learned and scale.init is None and scale.value is None:
        yield "a learned scale starts somewhere; give init"
    if not scale.learned and scale.init is not None:
        yield "init belongs to a learned scale, and this one is fixed"
    if scale.granularity == "head" and "attention" not in name:
        yield "only attention has heads"


def _dropout(owner: str, dropout: Dropout, manifest: Manifest, view: View) -> Iterator[str]:
    p = view.value(dropout.p)
    if isinstance(p, int | float) and not 0 <= p < 1:
        yield f"p: {p} is not in [0, 1)"
    inside = owner in ("attention_probability", "mlp_hidden")
    if inside != (dropout.position == "inside_branch"):
        yield f"position: {dropout.position} for {owner}"
    if (owner == "embedding") != (dropout.position == "input"):
        yield f"position: {dropout.position} for {owner}"
    if dropout.schedule != "constant" and owner != "drop_path":
        yield f"schedule: {dropout.schedule} belongs to drop_path"
    if owner == "drop_path" and dropout.granularity not in ("example", "layer"):
        yield f"granularity: drop_path drops a branch of an example or a layer, not {dropout.granularity}s"
    if dropout.scaling == "none" and p == 0:
        yield "scaling: nothing is dropped, so that nothing is left unscaled"
    if owner == "cross_attention_output" and not any(b.name == owner[:15] for s in manifest.stacks for b in s.branches):
        yield "no stack has cross attention"
