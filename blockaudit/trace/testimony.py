"""What the numbers say of the contract's fields: what they were solved to, and the edits that were verified."""

from __future__ import annotations

import re

from blockaudit.records.bound import BoundManifest
from blockaudit.records.conformance import Conformance, Identified
from blockaudit.records.contract import Statement, Testimony
from blockaudit.records.layers import numbers
from blockaudit.reference import assembly


def measured(run: Conformance, bound: BoundManifest) -> Testimony:
    """The witness `measured`. A field that differs in some layers is said to be what it is there.

    `layers` of a statement is empty where it holds for every layer that has the field.
    """
    said: dict[str, Statement] = {}
    for one in sorted(run.identified, key=lambda f: not f.differs):
        if one.value is not None and one.field not in said:
            layers = _layers(one.field, one.layers, bound)
            said[one.field] = Statement(_value(one), one.evidence, "numbers", layers=layers)
    for edit in run.diagnosis:
        if edit.group:
            evidence = f"the reference with this value agrees with the candidate ({edit.explains:.2%} of the error)"
            layers = _layers(edit.field, edit.layers, bound)
            said[edit.field] = Statement(edit.value, evidence, "numbers", layers=layers)
    return Testimony("measured", said)


def _value(found: Identified) -> object:
    """The declared value where the interval holds it: a number that is as good as another contradicts nobody."""
    return found.value if found.declared is None or found.differs else found.declared


def _layers(field: str, layers: str, bound: BoundManifest) -> str:
    """The layers that a statement is limited to; empty for all of a branch's."""
    return "" if layers and numbers(layers) >= _every(field, bound) else layers


def _every(field: str, bound: BoundManifest) -> set[int]:
    """The layers that have a field: `decoder.mlp[moe].norm_in.epsilon` is of those whose mlp is a mixture."""
    stack, _, rest = field.partition(".")
    span = next((s for s in bound.spans if s.name == stack), None)
    if span is None or span.run is None:
        return set()
    owner = f"{stack}.{rest.partition('.')[0]}"
    branch = re.sub(r"\[.*\]$", "", rest.partition(".")[0])
    every = set(range(span.run))
    named = any(b.name == branch for s in bound.manifest.stacks if s.name == stack for b in s.branches)
    return {n for n in every if assembly.owner_in(bound, stack, n, branch) == owner} if named else every
