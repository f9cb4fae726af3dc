"""Which source slot each target slot comes from, and what is done to it on the way: what the layout checks read."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from blockaudit.migrate.sides import Slot
from blockaudit.migrate.work import Work
from blockaudit.records.migration import MoveRule, Step
from blockaudit.records.operations import Concat, Operation, Split

# What a rule may say that it keeps: an operation for each thing that can change, or this word.
KEEPS = {"axes": "transpose", "rope": "permute_rope", "heads": "a layout"}


class Flow(msgspec.Struct, frozen=True):
    """A step as an example of its like: its source slots and target slots, None where they are unknown."""

    number: int
    rule: MoveRule
    step: Step
    sources: tuple[Slot | None, ...]
    targets: tuple[Slot | None, ...]

    @property
    def example(self) -> str:
        """The target template, the first of several."""
        return self.target(0)

    def target(self, value: int) -> str:
        """The template of the target's value `value` (counted as in `to`): the manifest's, where it has one."""
        slot = self.targets[min(value, len(self.targets) - 1)]
        return self.rule.targets[min(value, len(self.rule.targets) - 1)] if slot is None else slot.expected.template

    def reaching(self, value: int) -> list[Operation]:
        """The operations that act on the target's value `value` (counted as in `to`), or on what it is cut from.

        An operation with `at` behind a split acts on those parts alone; before a concat, on those of `from`.
        """
        found: list[Operation] = []
        width = len(self.rule.sources)
        for op in self.step.ops:
            at = getattr(op, "at", None)
            picked = None if at is None else [at] if isinstance(at, int) else list(at)
            if picked is None or width != len(self.rule.targets) or value in picked:
                found.append(op)
            if isinstance(op, Split) and op.axis is None:
                width = len(self.rule.targets)
            if isinstance(op, Concat) and op.axis is None:
                width = 1
        return found


def flows(work: Work) -> Iterator[Flow]:
    """One flow for each rule and each kind of tensor that it feeds: the first layer stands for all."""
    seen: set[tuple[int, tuple[str | None, ...]]] = set()
    for step in work.steps:
        targets = tuple(work.target.slots.get(key) for key in step.targets[0].values)
        kind = step.rule, tuple(None if slot is None else slot.expected.template for slot in targets)
        if kind in seen:
            continue
        seen.add(kind)
        sources = tuple(work.source.slots.get(key) for key in step.sources[0].values)
        yield Flow(step.rule, work.map.rules[step.rule], step, sources, targets)


def attention_of(slot: Slot) -> str | None:
    """The owner whose attention a slot's tensor belongs to, and None for every other tensor."""
    return slot.expected.owner if role_of(slot) in ("q", "k", "v", "qkv") else None


def role_of(slot: Slot) -> str:
    """The role of a tensor, a bias being of its projection (`q` of `q.bias`)."""
    return slot.expected.role.removesuffix(".bias")
