"""Numbers that the map changes: each factor and each offset is one that the two contracts differ by, and no other."""

from __future__ import annotations

import math
from collections.abc import Iterator

from blockaudit.migrate.check.differences import aligned_source, said
from blockaudit.migrate.check.pairs import Flow, flows
from blockaudit.migrate.sides import Slot
from blockaudit.migrate.work import Work
from blockaudit.records.checkpoint import Fault
from blockaudit.records.operations import Add, Scale


def factors(work: Work) -> Iterator[Fault]:
    """`topology-change-needs-retraining`: a tensor that is scaled or shifted though both sides read it alike.

    Offsets of norm gains are `topology`'s. Without a manifest of the source nobody says what it reads.
    """
    if work.source.bound is None:
        return
    for flow in flows(work):
        for n, slot in enumerate(flow.targets):
            if slot is None:
                continue
            factor, asked = _factor(flow, n), _asked(work, slot)
            if not math.isclose(factor, asked, rel_tol=1e-9):
                yield _flaw(
                    flow, n, f"is multiplied by {factor:g}, and the two contracts ask for {asked:g}", asked, factor
                )
            if slot.expected.what != "norm" and any(isinstance(op, Add) for op in flow.reaching(n)):
                yield _flaw(flow, n, "has a number added, and both sides read it as it is", 0, "add")


def compensates(work: Work, field: str, a: object, b: object) -> bool:
    """Whether what multiplies the state or the logits is moved into the tensors: w' b = w a where w' = w a / b."""
    if not isinstance(a, int | float) or not isinstance(b, int | float) or not b:
        return False
    slots = {key: slot for key, slot in work.target.slots.items() if key in work.fed and _field(slot) == field}
    if field == "logits.scale" and not slots:
        slots = {k: s for k, s in work.target.slots.items() if k in work.fed and s.expected.role == "tokens"}
    made = [
        math.prod(_value(op) for op in s.ops if isinstance(op, Scale))
        for s in work.steps
        if set(s.outputs) & set(slots)
    ]
    return bool(made) and all(math.isclose(factor, a / b, rel_tol=1e-9) for factor in made)


def _field(slot: Slot) -> str | None:
    """The factor of the contract that stands before or behind this tensor, and behind no other."""
    if slot.expected.what == "embedding" and slot.expected.role == "tokens":
        return f"{slot.expected.stack}.embedding.scale"
    return "logits.scale" if slot.expected.role == "lm_head" else None


def _factor(flow: Flow, n: int) -> float:
    return math.prod(_value(op) for op in flow.reaching(n) if isinstance(op, Scale))


def _value(op: Scale) -> float:
    return op.value if isinstance(op.value, int | float) else math.nan


def _asked(work: Work, slot: Slot) -> float:
    """The factor by which the two sides read a tensor differently."""
    field = _field(slot)
    if field is None:
        return 1.0
    mine, theirs = aligned_source(work).fields.get(field), said(work.target, field)
    a, b = (None if v is None or not v.known else v.value for v in (mine, theirs))
    return a / b if isinstance(a, int | float) and isinstance(b, int | float) and b else 1.0


def _flaw(flow: Flow, n: int, why: str, expected: object, observed: object) -> Fault:
    return Fault(
        "topology-change-needs-retraining",
        flow.target(n),
        f"rule {flow.number}: {flow.target(n)} {why}: that is another function",
        flow.step.outputs,
        expected=expected,
        observed=observed,
        evidence=f"rules[{flow.number}].ops",
    )
