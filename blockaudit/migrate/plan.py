"""The plan that `convert` carries out: a map that was found sound, as steps in the order of the target's keys."""

from __future__ import annotations

from blockaudit.migrate import templates
from blockaudit.migrate.check.account import dropped
from blockaudit.migrate.work import Work, aliased
from blockaudit.records.migration import Filled, Plan, Step, TensorType


def plan(work: Work) -> Plan:
    """The plan of a map that `check` has found no fault with."""
    skipped = _untold(work)
    order = {key: n for n, key in enumerate(work.target.slots)}
    steps = [s for s in work.steps if not (s.outputs and set(s.outputs) <= skipped.keys())]
    steps += work.states
    steps.sort(key=lambda s: order.get(s.outputs[0], len(order)))
    slots = work.target.slots
    return Plan(
        map_name=work.map.name,
        map_sha256=work.loaded.sha256,
        steps=tuple(steps),
        filled=tuple(_filled(work)),
        aliases={k: t for k, t in work.map.alias if k in slots and (slots[k].tied or k not in work.fed)},
        verify={**_stored_aliases(work), **dict(skipped.values())},
        dropped=dropped(work),
        config=work.carried.config,
        config_file=work.map.config_file if work.loaded.reversed else "config.json",
    )


def _untold(work: Work) -> dict[str, tuple[str, str]]:
    """Tied target keys that a rule feeds with a copy: target key -> (its source, the twin's source).

    They are not written: the source's two tensors are compared instead.
    """
    origin: dict[str, Step] = {key: step for step in work.steps for key in step.outputs}
    found: dict[str, tuple[str, str]] = {}
    for key, twin in work.map.alias:
        mine, other = origin.get(key), origin.get(twin)
        slot = work.target.slots.get(key)
        if mine is not None and other is not None and slot is not None and slot.tied and mine.ops == other.ops:
            found[key] = (mine.inputs[0], other.inputs[0])
    return found


def _stored_aliases(work: Work) -> dict[str, str]:
    """Source keys that no rule takes because they are another's copy."""
    types = work.source.types
    return {key: twin for key, twin in work.map.alias if key in types and twin in types and key not in work.taken}


def _filled(work: Work) -> list[Filled]:
    """Initialised tensors, in the dtype that the target's other tensors have."""
    found: list[Filled] = []
    dtypes = [t.dtype for t in work.target.types.values()]
    dtype = max(set(dtypes), key=dtypes.count) if dtypes else "F32"
    for init in work.map.init:
        for key, slot in work.target.slots.items():
            if templates.bind(init.key, key) is not None and key not in aliased(work.map, 0):
                shape = tuple(n or 0 for n in slot.expected.shape)
                found.append(Filled(key, TensorType(dtype, shape), init.value, init.why))
    return found
