"""State that no source has: biases are never invented, and other new state only where its contract asks for it."""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.migrate import templates
from blockaudit.migrate.sides import Slot
from blockaudit.migrate.work import Work
from blockaudit.records.checkpoint import Fault
from blockaudit.records.migration import Init
from blockaudit.records.operations import Fold

VALUES = ("zeros", "ones")


def state(work: Work) -> Iterator[Fault]:
    """`map-invents-state`: an initialised key that makes up what a source of this function would have."""
    for number, init in enumerate(work.map.init):
        keys = [k for k in work.target.slots if templates.bind(init.key, k) is not None]
        module = init.key.removesuffix(".bias") + ".weight"
        beside = [k for k in work.target.slots if templates.bind(module, k) is not None]
        if not keys and init.key.endswith(".bias") and beside:
            # The target has the weight and no bias to it: with one it would be another function.
            yield _invented(number, init, [k.removesuffix(".weight") + ".bias" for k in beside], True)
        elif not keys:
            yield _unknown(number, init)
        elif init.value not in VALUES and not init.value.startswith("recipe:"):
            yield Fault(
                "map-invalid",
                f"init[{number}]",
                f"init {init.key}: expected zeros, ones or recipe:NAME, found {init.value}",
                evidence=f"init[{number}].value",
            )
        elif not _neutral(work, work.target.slots[keys[0]], init):
            yield _invented(number, init, keys, work.target.slots[keys[0]].expected.role.endswith("bias"))


def _neutral(work: Work, slot: Slot, init: Init) -> bool:
    """A gain that does nothing, where the gain that the source has is folded into the weight behind it."""
    folds = any(isinstance(op, Fold) for rule in work.map.rules for op in rule.ops)
    if slot.expected.what != "norm" or slot.expected.role == "bias":
        return False
    bound = work.target.bound
    offset = None if bound is None else bound.fields.get(f"{slot.expected.owner}.scale_offset")
    nothing = "zeros" if offset is not None and offset.value == 1 else "ones"
    return folds and init.value == nothing


def _unknown(number: int, init: Init) -> Fault:
    return Fault(
        "map-not-total",
        init.key,
        f"{init.key} is initialised, and the target's manifest has no such key",
        (init.key,),
        expected="a key of the target's manifest",
        observed=init.key,
        evidence=f"init[{number}]",
    )


def _invented(number: int, init: Init, keys: list[str], bias: bool) -> Fault:
    why = "a bias is part of the function, and is never invented" if bias else "the source has no such state"
    return Fault(
        "map-invents-state",
        init.key,
        f"{init.key} would be made up of {init.value}: {why}",
        tuple(keys),
        expected="a tensor of the source",
        observed=init.value,
        evidence=f"init[{number}]: {init.why}",
    )
