"""Tied tensors: one storage under two names stays one storage under two names."""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.migrate.work import Work, aliased
from blockaudit.records.checkpoint import Fault


def ties(work: Work) -> Iterator[Fault]:
    """`map-alias-lost`: a tie of the target that the map does not declare, or one that neither side has."""
    slots, declared = work.target.slots, set(aliased(work.map, 0))
    for key, slot in slots.items():
        if slot.tied and key not in declared and not slot.expected.optional:
            yield Fault(
                "map-alias-lost",
                key,
                f"{key} shares the storage of {slot.expected.tied_to} in the target, and the map declares no alias: "
                f'add ["{key}", "{slot.expected.tied_to}"] to alias',
                (key, slot.expected.tied_to or ""),
                expected=[key, slot.expected.tied_to],
                observed=None,
                evidence=slot.expected.tied.evidence if slot.expected.tied is not None else "",
            )
    for number, (key, twin) in enumerate(work.map.alias):
        if key not in slots and key not in work.source.types and not _known(work, key):
            yield _flaw("map-invalid", number, key, twin, f"{key} is a key of neither side")
        elif key in slots and not slots[key].tied and key not in work.fed and slots[key].needed:
            tie = slots[key].expected.tied
            why = f" ({tie.evidence})" if tie is not None else ""
            yield _flaw(
                "map-alias-lost",
                number,
                key,
                twin,
                f"the target's config does not tie {key} to {twin}{why}, and nothing feeds it",
            )


def _known(work: Work, key: str) -> bool:
    """Whether the source's manifest knows the key, though this source does not store it."""
    bound = work.source.bound
    return bound is not None and any(t.template == key for t in (*bound.expected, *bound.foreign))


def _flaw(rule: str, number: int, key: str, twin: str, why: str) -> Fault:
    return Fault(rule, key, f"alias {number}: {why}", (key, twin), evidence=f"alias[{number}]")
