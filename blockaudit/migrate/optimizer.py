"""Optimizer state beside the weights: moments move as their parameters do, counters as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from blockaudit.migrate import ops, templates
from blockaudit.records.checkpoint import Fault
from blockaudit.records.migration import MigrationMap, Optimizer, Row, State, Step, TensorType
from blockaudit.records.operations import Add, Cast, Fold, Operation, Scale


def carried(
    map_: MigrationMap, steps: Iterable[Step], types: Mapping[str, TensorType]
) -> tuple[list[Step], list[Fault]]:
    """A step for each moment of each step's parameters, and for each counter.

    A gain of w + 1 has the gradient of w, so that `add` leaves moments as they are; each keeps its own dtype. Scaling a
    parameter by s divides its first moment by s and its second by s ** 2, and nothing here says which is which: with
    `scale` or `fold` the state is to be dropped, with the reason.
    """
    plan = map_.optimizer
    if plan is None or plan.do != "carry":
        return [], []
    found = [
        Step(-1, (Row((), (k,)),), (), (Row((), (k,)),), {k: types[k]}, {k: types[k]}) for k in _counters(plan, types)
    ]
    flaws: list[Fault] = []
    for step in steps:
        for template in plan.moments:
            keys = {key: templates.fill(template, (("*", key),)) for key in step.inputs}
            held = [moment in types for moment in keys.values()]
            if not any(held):
                continue
            why = _refused(step) if all(held) else "the others of its step have none"
            if why:
                flaws.append(_flaw(step, keys, template, why))
            else:
                found.append(_moved(step, keys, template, types))
    return found, flaws


def dropped(map_: MigrationMap, types: Iterable[str]) -> dict[str, str]:
    """Keys of state that the map leaves behind, with the reason."""
    plan = map_.optimizer
    if plan is None or plan.do != "drop":
        return {}
    return {key: plan.why for t in (*plan.moments, *plan.counters) for key in templates.matches(t, types).values()}


def _counters(plan: Optimizer, types: Iterable[str]) -> list[str]:
    return [key for template in plan.counters for key in templates.matches(template, types).values()]


def _refused(step: Step) -> str:
    numbers = [ops.name(op) for op in step.ops if isinstance(op, Scale | Fold)]
    return f"{numbers[0]} changes what its moments are" if numbers else ""


def _moved(step: Step, keys: Mapping[str, str], template: str, types: Mapping[str, TensorType]) -> Step:
    """The step of a parameter, done to one of its moments."""
    kept: tuple[Operation, ...] = tuple(op for op in step.ops if not isinstance(op, Add | Cast))
    sources = tuple(replace(row, values=tuple(keys[k] for k in row.values)) for row in step.sources)
    targets = tuple(
        replace(row, values=tuple(templates.fill(template, (("*", k),)) for k in row.values)) for row in step.targets
    )
    before: State[TensorType] = tuple(Row(r.at, tuple(types[k] for k in r.values)) for r in sources)
    after = ops.types_after(kept, before)[-1]
    out = {
        k: t for names, row in zip(targets, after, strict=True) for k, t in zip(names.values, row.values, strict=True)
    }
    return Step(step.rule, sources, kept, targets, {k: types[k] for row in sources for k in row.values}, out)


def _flaw(step: Step, keys: Mapping[str, str], template: str, why: str) -> Fault:
    return Fault(
        "map-invalid",
        template,
        f"rule {step.rule}: {next(iter(keys.values()))} cannot be carried: {why}; drop the optimizer's state, with the "
        "reason",
        tuple(keys.values()),
        evidence="optimizer",
    )
