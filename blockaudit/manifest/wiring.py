"""The wiring that a manifest declares, as the neutral record that drawings are made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from blockaudit.manifest.equation import (
    STATES,
    branch_scale,
    carries_norm,
    factor,
    final_norm,
    norm_name,
    number,
    reads,
    residual_of,
    word,
)  # fmt: skip
from blockaudit.manifest.fields import inherited
from blockaudit.manifest.show import source
from blockaudit.manifest.view import View, owner_of
from blockaudit.records.manifest import Branch, Manifest, Norm, Scale, Stack
from blockaudit.records.wiring import AddMark, BlockMark, BranchMark, NormMark, StackMark, Step, Wiring

_NOT_SAID = "?"


def wiring(manifest: Manifest, config: Mapping[str, Any] | None = None) -> Wiring:
    """Every stack that runs, under a config or under the manifest's own defaults."""
    view = View(manifest, config)
    stacks = [s for s in manifest.stacks if not s.ignored]
    read = any(_outside(b, view) for s in stacks[1:] for b in view.branches(s, next(iter(view.kinds(s)))))
    return Wiring(
        manifest.architecture_id,
        tuple(_stack(s, view, last=s is stacks[-1], memory=read and s is stacks[0]) for s in stacks),
    )


def _stack(stack: Stack, view: View, last: bool, memory: bool) -> StackMark:
    blocks, series = _blocks(stack, view)
    head = _head(stack, view) if last else ()
    return StackMark(
        name=stack.name,
        start="tokens",
        before=_before(stack, view),
        blocks=blocks,
        series=series,
        after=(*_after(stack, view), *head),
        end="logits" if head else "memory" if memory else "state",
        unplaced=tuple(_mark(norm, f"{stack.name}.unplaced.{name}", view) for name, norm in stack.unplaced.items()),
    )


# -- around the layers ----------------------------------------------------------------------------------------------


def _before(stack: Stack, view: View) -> tuple[Step, ...]:
    """The embedding, its norm, and a projection to the width of the state on the side where it stands."""
    times = factor(stack.embedding_scale, view)
    roles = list(dict.fromkeys(t.role for t in stack.embedding if view.present(t.when) and t.role != "project_out"))
    # A norm of another width than the state's stands before the projection.
    late = stack.embedding_norm is not None and stack.embedding_norm.shape not in (UNSET, ["d_model"])
    parts = tuple(times + role if role == "tokens" else role for role in roles if not (late and role == "project_in"))
    steps = [Step(("embedding", *(() if parts == ("tokens",) else parts)))]
    if stack.embedding_norm is not None:
        steps.append(Step(norm=_mark(stack.embedding_norm, f"{stack.name}.embed_norm", view)))
    if late and "project_in" in roles:
        steps.append(Step(("project_in",)))
    return tuple(steps)


def _after(stack: Stack, view: View) -> tuple[Step, ...]:
    steps: list[Step] = []
    if final_norm(stack, view) and stack.final_norm is not None:
        steps.append(Step(norm=_mark(stack.final_norm, f"{stack.name}.final_norm", view)))
    if any(t.role == "project_out" and view.present(t.when) for t in stack.embedding):
        steps.append(Step(("project_out",)))
    return tuple(steps)


def _head(stack: Stack, view: View) -> tuple[Step, ...]:
    """The projection to logits, where the family's first class has one or the stack says what is done to them."""
    times, cap = factor(stack.logit_scale, view), view.value(stack.logit_softcap)
    first = next(iter(view.manifest.match.classes.values()), None)
    if not times and cap is None and (first is None or "lm_head" not in first.parts):
        return ()
    lines = ["head", *([f"{times}head(z)"] if times else []), *([f"softcap {number(cap)}"] if cap is not None else [])]
    return (Step(tuple(lines)),)


# -- layers ---------------------------------------------------------------------------------------------------------


def _blocks(stack: Stack, view: View) -> tuple[tuple[BlockMark, ...], bool]:
    """The blocks by kind of layer, in the order in which they first run; and whether each is one run of layers."""
    kinds = {k: layers for k, layers in view.kinds(stack).items() if layers}
    drawn: dict[tuple[AddMark, ...], list[str]] = {}
    for kind in sorted(kinds, key=lambda k: kinds[k][0]):
        drawn.setdefault(_adds(stack, view, kind), []).append(kind)
    runs = [sorted(n for k in names for n in kinds[k]) for names in drawn.values()]
    series = all(run == list(range(run[0], run[-1] + 1)) for run in runs)
    blocks = [
        _block(stack, view, adds, _title(stack, view, names if len(drawn) > 1 else [], len(run)))
        for (adds, names), run in zip(drawn.items(), runs, strict=True)
    ]
    return tuple(blocks), series


def _block(stack: Stack, view: View, adds: tuple[AddMark, ...], title: str) -> BlockMark:
    if view.value(stack.parallel) is None:
        names = ", ".join(b.name for b in stack.branches)
        return BlockMark(title, unknown=f"not declared: how {names or 'its branches'} are joined")
    return BlockMark(title, adds, "y") if adds else BlockMark(title, unknown="not declared: its branches")


def _title(stack: Stack, view: View, kinds: list[str], mine: int) -> str:
    """`n_layers layers (32)`, `moe: 58 of 61 layers (l >= first_dense)`."""
    total = view.value(stack.layers)
    if kinds:
        conditions = " or ".join(stack.layer_kinds[k] for k in kinds)
        return f"{' | '.join(kinds)}: {mine} of {total} layers ({conditions})"
    declared = str(source(stack.layers))
    title = f"{declared} layers" + ("" if total is None or str(total) == declared else f" ({total})")
    stored = source(stack.stored_layers)
    return title if stored is None else f"{title}, weights of {stored}"


def _adds(stack: Stack, view: View, kind: str) -> tuple[AddMark, ...]:
    branches = view.branches(stack, kind)
    if view.value(stack.parallel) is True:
        return (_add(branches, stack, view, "x"),) if branches else ()
    return tuple(_add([b], stack, view, STATES[min(i, len(STATES) - 1)]) for i, b in enumerate(branches))


def _add(branches: list[Branch], stack: Stack, view: View, state: str) -> AddMark:
    residual = residual_of(stack, view)
    marks = [_branch(b, branches, stack, view) for b in branches]
    carried = None
    norms_in = list(dict.fromkeys(m.norm_in for m in marks))
    if carries_norm(residual, view) and norms_in[0] is not None:
        if len(norms_in) > 1:
            return AddMark(tuple(marks), state, shortcut=_NOT_SAID)
        carried = norms_in[0]
        marks = [msgspec.structs.replace(m, norm_in=None) for m in marks]
    post = next(((b, n) for b in branches if (n := view.norms(b, stack).get("norm_post")) is not None), None)
    update, merge = word(residual.update, view), ""
    if update == "interpolate_retract":
        # The factor is part of how the two are joined, and no factor of the branch.
        rate = factor(branch_scale(branches[0], residual), view).removesuffix(" * ") or "1"
        merge = f"retract(shortcut + {rate} * (branch - shortcut))"
        marks = [msgspec.structs.replace(m, factor="") for m in marks]
    elif update is None:
        merge = _NOT_SAID
    return AddMark(
        branches=tuple(marks),
        state=state,
        shortcut=_shortcut(stack, view),
        carried=carried,
        norm_post=None if post is None else _mark(post[1], f"{owner_of(post[0], stack)}.norm_post", view),
        merge=merge,
    )


def _shortcut(stack: Stack, view: View) -> str:
    """What multiplies the state on its way past the branches; nothing where it goes as it is."""
    residual = residual_of(stack, view)
    times = _factor(residual.shortcut_scale, view)
    if word(residual.shortcut_source, view) is None:
        return _NOT_SAID
    match word(residual.shortcut, view):
        case None:
            return _NOT_SAID
        case "gate":
            return f"{times} * gate(x)" if times else "gate(x)"
        case "projection":
            return f"{times} * projection" if times else "projection"
        case "vector" | "scalar" if not times:
            return "s"
        case _:
            return times


def _branch(branch: Branch, beside: list[Branch], stack: Stack, view: View) -> BranchMark:
    site, norms = owner_of(branch, stack), view.norms(branch, stack)
    marks = {place: _mark(norm, f"{site}.{place}", view) for place, norm in norms.items()}
    norm_in, outside = marks.get("norm_in"), _outside(branch, view)
    shared = _shared(branch, beside, stack, view) if norm_in is None else None
    softcap = view.value(branch.softcap)
    routed = () if branch.score_route == "none" else (f"{branch.score_route} of scores so far",)
    return BranchMark(
        name=branch.name,
        kind=branch.kind,
        site=site,
        norm_in=norm_in or shared,
        norm_out=marks.get("norm_out"),
        inner=tuple(mark for place, mark in marks.items() if place.startswith("inner")),
        notes=(*routed, *(() if softcap is None else (f"softcap {number(softcap)}",))),
        factor=_factor(branch_scale(branch, residual_of(stack, view)), view),
        reads="" if shared is not None else outside,
        detached=shared is None and bool(outside) and reads(branch, view) != "state",
    )


def _outside(branch: Branch, view: View) -> str:
    """What a branch takes that is not the state."""
    read = reads(branch, view)
    if read == "state":
        return next((s for s in branch.sources.values() if s != "state"), "")
    return _NOT_SAID if read is None else str(read)


def _shared(branch: Branch, beside: list[Branch], stack: Stack, view: View) -> NormMark | None:
    """The norm of a branch beside it that a branch reads."""
    owner, _, place = str(reads(branch, view)).partition(".")
    other = next((b for b in beside if b.name == owner and b is not branch), None)
    norm = None if other is None or place != "norm_in" else view.norms(other, stack).get(place)
    return None if other is None or norm is None else _mark(norm, f"{owner_of(other, stack)}.{place}", view)


def _mark(norm: Norm, site: str, view: View) -> NormMark:
    """A norm by its family; an offset to its weight and the instance that it shares belong to the name."""
    offset, instance = (inherited(norm, view.manifest.norm, name) for name in ("scale_offset", "instance"))
    plus = "" if offset is UNSET or view.value(offset) != 1 else " (1 + w)"
    shared = f" = {instance}" if isinstance(instance, str) else ""
    return NormMark(f"{norm_name(norm, view)}{plus}{shared}", site)


def _factor(value: Any, view: View) -> str:
    """A factor by itself: `0.22`, `residual_multiplier`; nothing where it is 1, `?` where nobody says."""
    if value is None or (isinstance(value, Scale) and not value.learned and value.value is None):
        return _NOT_SAID
    return factor(value, view).removesuffix(" * ")
