"""Tied tensors: what is declared, what is stored, and whether the stored bytes are equal."""

from __future__ import annotations

import msgspec

from blockaudit.checkpoint.values import equal, located, same_bytes, sampled_equal
from blockaudit.records.binding import Binding
from blockaudit.records.bound import BoundManifest
from blockaudit.records.checkpoint import Checkpoint


class Tie(msgspec.Struct, frozen=True):
    """One tied pair and what is known of it. `equal` is None where the two were not both there to compare.

    `implied` says that the declaration is a class default, not a key of config.json.
    """

    key: str
    source: str
    declared: bool | None
    evidence: str
    implied: bool
    key_stored: bool
    source_stored: bool
    equal: bool | None
    compared: str  # "all bytes" | "sampled blocks" | "one storage" | ""


def examine(checkpoint: Checkpoint, bound: BoundManifest, binding: Binding, *, whole: bool) -> tuple[Tie, ...]:
    """Every pair that the manifest may tie; bytes are compared where both are stored (`whole`, or sampled blocks)."""
    ties: list[Tie] = []
    known = {e.template for e in bound.expected}
    for e in bound.expected:
        # A class without the other half (BART's decoder alone) has nothing to tie to.
        if e.tied_to is None or e.tied is None or e.ignored or e.tied_to not in known:
            continue
        here, there = e.template in binding.tensors, e.tied_to in binding.tensors
        alike, compared = None, ""
        # Untied tensors that happen to be equal are no fault: only a declared tie is worth the reading.
        if here and there and e.tied.value:
            alike, compared = _compare(checkpoint, binding.stored(e.template), binding.stored(e.tied_to), whole)
        declared = bool(e.tied.value) if e.tied.known else None
        ties.append(
            Tie(
                e.template, e.tied_to, declared, e.tied.evidence, bool(e.tied.implied), here, there, alike, compared
            )
        )  # fmt: skip
    return tuple(ties)


def _compare(checkpoint: Checkpoint, a: str, b: str, whole: bool) -> tuple[bool | None, str]:
    try:
        if same_bytes(checkpoint, a, b):
            return True, "one storage"
        if not (located(checkpoint, a) and located(checkpoint, b)):
            return None, ""
        if whole:
            return equal(checkpoint, a, b), "all bytes"
        return sampled_equal(checkpoint, a, b), "sampled blocks"
    except (OSError, ValueError):
        # A truncated file is a finding of its own; here it only means that nothing can be said.
        return None, ""
