"""Every tensor lands where the two manifests read the same thing: norms at the same site, matrices in the same role."""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.manifest.align import align
from blockaudit.migrate.sides import Slot
from blockaudit.migrate.work import Work
from blockaudit.records.checkpoint import Fault
from blockaudit.records.migration import Step

_FUSED = {"qkv": {"q", "k", "v"}, "gate_up": {"gate", "up"}, "kv": {"k", "v"}}


def norms(work: Work) -> Iterator[Fault]:
    """`map-norm-swapped` for norms, `map-role-swapped` for every other tensor; one flaw for each rule."""
    if not work.source.slots or work.source.bound is None or work.target.bound is None:
        return
    _, renamed = align(work.target.bound.manifest, work.source.bound.manifest)
    names = {old: new for _, new, old in renamed}
    told: set[tuple[int, str]] = set()
    for step in work.steps:
        for flaw in _step(work, step, names):
            if (step.rule, flaw.rule) not in told:
                told.add((step.rule, flaw.rule))
                yield flaw


def _step(work: Work, step: Step, names: dict[str, str]) -> Iterator[Fault]:
    sources = [(k, work.source.slots[k]) for k in step.inputs if k in work.source.slots]
    for key in step.outputs:
        slot = work.target.slots.get(key)
        if slot is None or not sources:
            continue
        if slot.expected.what == "norm":
            if not any(_place(s, names) == _place(slot, {}) for _, s in sources):
                yield _swapped("map-norm-swapped", step, sources[0], (key, slot), names)
        elif not any(_role_fits(s, slot, names) for _, s in sources):
            yield _swapped("map-role-swapped", step, sources[0], (key, slot), names)


def _place(slot: Slot, names: dict[str, str]) -> tuple[str, str, int | None]:
    """Which norm of which branch in which layer, by the names of the target's manifest, and which of its tensors."""
    return _named(slot.expected.owner, names), slot.expected.role, slot.layer


def _named(owner: str, names: dict[str, str]) -> str:
    return ".".join(names.get(word, word) for word in owner.split("."))


def _role_fits(source: Slot, target: Slot, names: dict[str, str]) -> bool:
    """The same branch, layer and role, a fused tensor standing for its parts; biases with biases."""
    one, two = source.expected, target.expected
    if source.layer != target.layer or one.role.endswith(".bias") != two.role.endswith(".bias"):
        return False
    if one.what in ("branch", "bias") and _named(one.owner, names) != two.owner:
        return False
    # `expert.gate` and `expert.gate_up` are of one expert, as `gate` and `gate_up` are of one branch.
    (of_a, _, a), (of_b, _, b) = (t.role.removesuffix(".bias").rpartition(".") for t in (one, two))
    if of_a != of_b:
        return False
    return a == b or b in _FUSED.get(a, ()) or a in _FUSED.get(b, ())


def _swapped(rule: str, step: Step, source: tuple[str, Slot], target: tuple[str, Slot], names: dict[str, str]) -> Fault:
    (old, one), (new, two) = source, target
    said, wanted = _told(one, names), _told(two, {})
    return Fault(
        rule,
        new,
        f"rule {step.rule}: {old} is {said}, and lands in {new}, which is {wanted}",
        (old, new),
        expected=wanted,
        observed=said,
        evidence=f"rules[{step.rule}]: the two manifests' block equations, not the keys' names",
    )


def _told(slot: Slot, names: dict[str, str]) -> str:
    layer = "" if slot.layer is None else f" of layer {slot.layer}"
    return f"{_named(slot.expected.owner, names)} {slot.expected.role}{layer}"
