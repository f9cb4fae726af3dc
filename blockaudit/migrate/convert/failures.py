"""Proofs that failed, as flaws of the map: the rule of each, and what to do."""

from __future__ import annotations

from blockaudit.migrate.convert.proof import Difference, RefusedStepError, Twins
from blockaudit.records.checkpoint import Fault

_ROUNDS = {"add", "scale", "fold", "cast"}


def round_trip(found: Difference) -> Fault:
    """The way back gave other bits."""
    rounds = _ROUNDS & set(found.ops)
    advice = "cast to a wider dtype before the arithmetic" if rounds else "the operations and their inverses disagree"
    return Fault(
        "map-round-trip",
        found.tensor,
        f"rule {found.rule} ({', '.join(found.ops)}) does not lead back: {found.count:,} of {found.elements:,} "
        f"elements of {found.tensor} come back as others, first number {found.first:,}, which was {found.before!r} and "
        f"comes back as {found.after!r}: {advice}",
        (found.tensor,),
        expected=found.before,
        observed=found.after,
        evidence=f"rules[{found.rule}].ops",
    )


def refused(found: RefusedStepError) -> Fault:
    """Numbers that an operation cannot act on."""
    return Fault(
        "map-round-trip",
        found.tensors[0],
        f"rule {found.rule}: {found.tensors[0]} and {len(found.tensors) - 1:,} more: {found.why}",
        found.tensors,
        evidence=f"rules[{found.rule}].ops",
    )


def twins(found: Twins) -> Fault:
    """A tie that the map goes by is none in the checkpoint."""
    return Fault(
        "map-alias-lost",
        found.key,
        f"the map takes {found.key} for a copy of {found.twin}, and their bytes differ from number {found.first:,} on: "
        f"give it a rule of its own, and a target that does not tie the two",
        (found.key, found.twin),
        evidence="alias",
    )
