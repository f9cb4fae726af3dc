"""The order of q, k and v rows in a fused projection, and of gate and up: equal parts hide it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blockaudit.migrate.check.pairs import Flow, attention_of, flows, role_of
from blockaudit.migrate.sides import Side, Slot
from blockaudit.migrate.work import Work
from blockaudit.records.checkpoint import Fault
from blockaudit.records.operations import Concat, Split

_QKV = ["q", "k", "v"]


def heads(work: Work) -> Iterator[Fault]:
    """`map-undeclared-layout`: rows that would land in another projection, or in another head of it."""
    for flow in flows(work):
        into, out_of = [_role(s) for s in flow.targets], [_role(s) for s in flow.sources]
        cuts = [op for op in flow.step.ops if isinstance(op, Split) and op.axis is None]
        joins = [op for op in flow.step.ops if isinstance(op, Concat) and op.axis is None]
        if len(set(into) & set(_QKV)) > 1:
            yield from _cut(work, flow, into, cuts)
        if "qkv" in into:
            yield from _joined(work, flow, out_of, cuts, joins)
        # Those of an expert lie as those of a dense layer do.
        parts = [None if role is None else role.removeprefix("expert.") for role in into]
        if "gate" in parts and "up" in parts:
            yield from _gated(work, flow, parts, cuts)
        if "gate_up" in parts:
            yield from _gate_joined(work, flow, out_of)


def _role(slot: Slot | None) -> str | None:
    return None if slot is None else role_of(slot)


def _owner(slots: tuple[Slot | None, ...]) -> str:
    return next((s.expected.owner for s in slots if s is not None and attention_of(s)), "")


def _fused(side: Side, slots: tuple[Slot | None, ...]) -> str | None:
    """How a manifest says that the fused projection of these slots lies."""
    if side.bound is None or not side.slots:
        return None
    owner = _owner(slots)
    found: Any = side.function(f"{owner}.fused") if owner else None
    if found is None and not slots[0]:
        said = {
            v.value for n, v in side.bound.functions.items() if n.endswith("attention.fused") and v.known and v.value
        }
        found = said.pop() if len(said) == 1 else None
    return found


def _cut(work: Work, flow: Flow, into: list[str | None], cuts: list[Split]) -> Iterator[Fault]:
    """One fused tensor becomes q, k and v."""
    given = _fused(work.source, flow.sources)
    if into != _QKV:
        yield _flaw(
            flow, f"a layout gives q, k, v in this order, and `to` lists {', '.join(map(str, into))}", _QKV, into
        )
        return
    declared = next((op for op in cuts if op.layout is not None), None)
    if declared is None:
        if "heads" not in flow.rule.keeps or (given or "qkv") != "qkv":
            yield _undeclared(flow, given)
        return
    if given is not None and not _same(declared, given):
        yield _flaw(
            flow, f"the source fuses q, k and v {given}, and {declared.layout} is declared", given, declared.layout
        )
    yield from _counted(work, flow, declared, flow.targets)


def _joined(
    work: Work, flow: Flow, out_of: list[str | None], cuts: list[Split], joins: list[Concat]
) -> Iterator[Fault]:
    """q, k and v, or another fused tensor, become one."""
    wanted, given = _fused(work.target, flow.targets), _fused(work.source, flow.sources)
    cut = next((op for op in cuts if op.layout is not None), None)
    if cut is not None and given is not None and not _same(cut, given):
        yield _flaw(flow, f"the source fuses q, k and v {given}, and {cut.layout} is cut", given, cut.layout)
    declared = next((op for op in joins if op.layout is not None), None)
    if declared is not None:
        if wanted is not None and not _same(declared, wanted):
            yield _flaw(
                flow,
                f"the target fuses q, k and v {wanted}, and {declared.layout} is declared",
                wanted,
                declared.layout,
            )
        if not cuts and None not in out_of and out_of != _QKV:
            yield _flaw(
                flow,
                f"a layout joins q, k, v in this order, and `from` lists {', '.join(map(str, out_of))}",
                _QKV,
                out_of,
            )
        yield from _counted(work, flow, declared, flow.targets)
    elif len(flow.sources) > 1:
        yield _undeclared(flow, wanted)
    elif given != wanted and "heads" not in flow.rule.keeps:
        yield _flaw(
            flow,
            f"the source fuses q, k and v {given or 'in no declared way'}, the target {wanted}: split by one "
            "layout and concat by the other" + ("" if given else ', or declare "keeps": ["heads"]'),
            wanted,
            given,
        )


def _same(op: Split | Concat, layout: str) -> bool:
    """Whether rows that lie as `layout` says lie as the operation says: a group of one query is a head."""
    kv = op.heads if op.kv_heads is None else op.kv_heads
    per_head = {op.layout, layout} == {"per_head", "per_group"} and op.heads == kv
    return op.layout == layout or per_head or (op.heads == 1 and kv == 1)


def _counted(work: Work, flow: Flow, op: Split | Concat, slots: tuple[Slot | None, ...]) -> Iterator[Fault]:
    """The head counts of a layout, held to the target's."""
    owner = _owner(slots)
    for name, given in (("heads", op.heads), ("kv_heads", op.heads if op.kv_heads is None else op.kv_heads)):
        wanted: Any = work.target.function(f"{owner}.{name}")
        if wanted is not None and given != wanted:
            yield _flaw(flow, f"the target has {wanted} {name}, and the layout is given {given}", wanted, given)


def _gated(work: Work, flow: Flow, into: list[str | None], cuts: list[Split]) -> Iterator[Fault]:
    """One fused tensor becomes gate and up, in the order in which the source's manifest says that they lie."""
    source = flow.sources[0]
    said = None if source is None else work.source.function(f"{source.expected.owner}.fused")
    if said in ("gate_up", "up_gate") and cuts and "_".join(map(str, into)) != said:
        yield _flaw(flow, f"the source fuses {said}, and `to` lists {', '.join(map(str, into))}", said, into)


def _gate_joined(work: Work, flow: Flow, out_of: list[str | None]) -> Iterator[Fault]:
    """Gate and up, or another fused tensor, become one, in the order that the target's manifest says."""
    target = flow.targets[0]
    wanted = None if target is None else work.target.function(f"{target.expected.owner}.fused")
    parts = [role.removeprefix("expert.") for role in out_of if role is not None]
    if len(parts) > 1:
        if wanted in ("gate_up", "up_gate") and "_".join(parts) != wanted:
            yield _flaw(flow, f"the target fuses {wanted}, and `from` lists {', '.join(parts)}", wanted, parts)
    elif parts == ["gate_up"] and flow.sources[0] is not None:
        given = work.source.function(f"{flow.sources[0].expected.owner}.fused")
        if None not in (given, wanted) and given != wanted:
            yield _flaw(flow, f"the source fuses {given}, the target {wanted}: split and concat them", wanted, given)


def _undeclared(flow: Flow, given: str | None) -> Fault:
    word = f'"layout": "{given}"' if given else '"layout": "qkv", "per_head" or "per_group"'
    return _flaw(
        flow,
        f"q, k and v lie in one tensor and no layout says how: declare {word}, with heads and kv_heads",
        given or ["qkv", "per_head", "per_group"],
        None,
    )


def _flaw(flow: Flow, why: str, expected: Any, observed: Any) -> Fault:
    return Fault(
        "map-undeclared-layout",
        flow.example,
        f"rule {flow.number}: {flow.example}: {why}",
        flow.step.outputs,
        expected=expected,
        observed=observed,
        evidence=f"rules[{flow.number}].ops",
    )
