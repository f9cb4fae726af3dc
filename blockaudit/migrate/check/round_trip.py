"""The way back: every rule undone gives the tensors that it took, and no target key is claimed by two rules."""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.migrate import ops
from blockaudit.migrate.work import Work, claims
from blockaudit.reconcile.expand import templates_of
from blockaudit.records.checkpoint import Fault
from blockaudit.records.migration import Row, State, Step, TensorType
from blockaudit.records.operations import Operation


def round_trip(work: Work) -> Iterator[Fault]:
    """`map-round-trip`: an operation that loses what it was given, or a way back that is none."""
    seen: set[int] = set()
    for step in work.steps:
        if step.rule not in seen:
            seen.add(step.rule)
            yield from _undone(work, step)
    ambiguous = [key for key in work.fed if len(claims(work.map, key)) > 1 and len(set(work.fed[key])) == 1]
    for template, keys in templates_of(ambiguous):
        rules = claims(work.map, keys[0])
        yield Fault(
            "map-round-trip",
            template,
            f"on the way back {template} is claimed by rules {' and '.join(map(str, rules))}: a key has one origin",
            tuple(keys),
            expected=list(work.fed[keys[0]]),
            observed=rules,
            evidence=", ".join(f"rules[{r}].to" for r in rules),
        )


def _undone(work: Work, step: Step) -> Iterator[Fault]:
    before: State[TensorType] = tuple(Row(r.at, tuple(step.in_types[k] for k in r.values)) for r in step.sources)
    types = ops.types_after(step.ops, before)
    back = ops.inverse(step.ops, types)
    if not isinstance(back, list):
        yield _lossy(work, step, back)
        return
    try:
        again = ops.types_after(back, types[-1])[-1]
    except ops.OperationError as error:
        yield _broken(step, str(error))
        return
    if {row.at: row.values for row in again} != {row.at: row.values for row in before}:
        yield _broken(step, f"the shapes come back as {again}, and were {before}")


def _lossy(work: Work, step: Step, op: Operation) -> Fault:
    """A fold and a cast are declared for what they are; a slice must say why nothing reads what it cuts off."""
    word, why = ops.name(op), getattr(op, "why", "")
    reason = f" ({why})" if why else ""
    return Fault(
        "map-round-trip",
        work.map.rules[step.rule].targets[0],
        f"rule {step.rule}: {word} has no inverse{reason}: the source cannot be made again from the target",
        step.outputs,
        expected="an operation with an inverse" if word == "slice" and not why else "declared as it is",
        observed=word,
        evidence=f"rules[{step.rule}].ops",
    )


def declared_loss(flaw: Fault) -> bool:
    """Whether a flaw is a loss that the map declares: a warning, and no reason to refuse it."""
    return flaw.rule == "map-round-trip" and flaw.expected == "declared as it is"


def _broken(step: Step, why: str) -> Fault:
    return Fault(
        "map-round-trip",
        step.outputs[0],
        f"rule {step.rule} undone is not what it was: {why}",
        step.inputs,
        evidence=f"rules[{step.rule}].ops",
    )
