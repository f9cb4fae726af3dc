"""The pairing of rotary coordinates, which no shape shows: half-split against interleaved rows of q and k."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blockaudit.migrate.check.pairs import Flow, attention_of, flows, role_of
from blockaudit.migrate.sides import Slot
from blockaudit.migrate.work import Work
from blockaudit.records.checkpoint import Fault
from blockaudit.records.operations import Concat, PermuteRope, Split


def rope(work: Work) -> Iterator[Fault]:
    """`map-undeclared-layout`: q or k whose rows would be paired otherwise than they were."""
    for flow in flows(work):
        for n, slot in enumerate(flow.targets):
            if slot is not None and attention_of(slot) is not None:
                yield from _one(work, flow, n, slot)
            elif slot is not None and _gain_of(slot) is not None:
                yield from _gain(work, flow, n, slot)
            elif slot is not None and any(isinstance(op, PermuteRope) for op in flow.reaching(n)):
                role = role_of(slot)
                yield _wrong(flow, n, f"{role} is not turned, and it is permuted", "no permute_rope", "permute_rope")


def _gain_of(slot: Slot) -> str | None:
    """The attention whose q or k a norm's gain multiplies, coordinate by coordinate (Qwen3)."""
    owner, _, inner = slot.expected.owner.rpartition(".inner.")
    return owner if inner in ("q", "k") and slot.expected.what == "norm" else None


def _gain(work: Work, flow: Flow, n: int, slot: Slot) -> Iterator[Fault]:
    """A gain of each coordinate goes where the rows of its projection go."""
    wanted = work.target.function(f"{_gain_of(slot)}.rotary.pairing")
    given = work.source.pairing
    permutes = any(isinstance(op, PermuteRope) and op.from_ != op.to for op in flow.reaching(n))
    if wanted is not None and given is not None and permutes != (given != wanted):
        if permutes:
            yield _wrong(flow, n, f"both sides pair as {wanted}, and the gain is permuted", "as it is", "permute_rope")
        else:
            yield _missing(flow, n, given, wanted)


def _one(work: Work, flow: Flow, n: int, slot: Slot) -> Iterator[Fault]:
    owner, role = slot.expected.owner, role_of(slot)
    wanted = work.target.function(f"{owner}.rotary.pairing")
    permutes = [op for op in flow.reaching(n) if isinstance(op, PermuteRope) and op.from_ != op.to]
    if wanted is None or role == "qkv":
        if wanted is not None and work.source.pairing not in (None, wanted) and not permutes:
            yield _missing(flow, n, work.source.pairing, wanted)
        return
    if role == "v":
        if permutes:
            yield _wrong(flow, n, "v is not turned, and its rows are permuted", "no permute_rope", "permute_rope")
        return
    given = work.source.pairing
    if not permutes:
        if given is None and "rope" not in flow.rule.keeps and not _laid_out(flow):
            yield _missing(flow, n, None, wanted)
        elif given is not None and given != wanted:
            yield _missing(flow, n, given, wanted)
        return
    yield from _declared(work, flow, n, slot, permutes, given, wanted)


def _declared(
    work: Work, flow: Flow, n: int, slot: Slot, permutes: list[PermuteRope], given: str | None, wanted: str
) -> Iterator[Fault]:
    """What is permuted, held to both manifests: from which pairing, to which, in how many heads, how many rows."""
    owner, role = slot.expected.owner, role_of(slot)
    if len(permutes) > 1:
        yield _wrong(flow, n, f"{role} is permuted {len(permutes)} times", 1, len(permutes))
    op = permutes[0]
    if op.to != wanted or (given is not None and op.from_ != given):
        ends = f"{given or op.from_} to {wanted}"
        if given == wanted:
            yield _wrong(
                flow, n, f"both sides pair {role} as {wanted}, and its rows are permuted", "as it is", op.from_
            )
        else:
            yield _wrong(flow, n, f"{role} goes from {ends}, and {op.from_} to {op.to} is declared", ends, op.to)
    heads: Any = work.target.function(f"{owner}.{'kv_heads' if role == 'k' else 'heads'}")
    if heads is not None and op.heads != heads:
        yield _wrong(flow, n, f"{role} has {heads} heads, and permute_rope is given {op.heads}", heads, op.heads)
    size, dim = work.target.function(f"{owner}.head_dim"), work.target.function(f"{owner}.rotary.dim")
    turned = op.rotary_dim if op.rotary_dim is not None else size
    turning = dim if isinstance(dim, int) else size
    if isinstance(turning, int) and turned != turning:
        yield _wrong(flow, n, f"{turning} of the {size} rows of a head of {role} turn, not {turned}", turning, turned)


def _laid_out(flow: Flow) -> bool:
    """Whether the rule says how the rows lie: then that it does not permute them is said as well."""
    return any(isinstance(op, Split | Concat) and op.layout is not None for op in flow.step.ops)


def _missing(flow: Flow, n: int, given: str | None, wanted: str) -> Fault:
    target = flow.target(n)
    said = (
        f"rotary coordinates are paired as {given} in the source and {wanted} in the target, and nothing permutes them"
        if given
        else f"the target pairs rotary coordinates as {wanted}, and neither a manifest nor the map says how the source "
        "does; no shape shows it"
    )
    word = "declare permute_rope with the head count of this projection"
    return Fault(
        "map-undeclared-layout",
        target,
        f"rule {flow.number}: {target}: {said}: {word}" + ("" if given else ', or "keeps": ["rope"]'),
        flow.step.outputs,
        expected="permute_rope" if given else 'permute_rope or "keeps": ["rope"]',
        observed="neither" if not given else "no permute_rope",
        evidence=f"rules[{flow.number}].ops",
    )


def _wrong(flow: Flow, n: int, why: str, expected: Any, observed: Any) -> Fault:
    target = flow.target(n)
    return Fault(
        "map-undeclared-layout",
        target,
        f"rule {flow.number}: {target}: {why}",
        flow.step.outputs,
        expected=expected,
        observed=observed,
        evidence=f"rules[{flow.number}].ops",
    )
