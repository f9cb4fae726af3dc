"""What the numbers say of the contract's fields: what they were solved to, and the edits that were verified."""

from __future__ import annotations

import re

from msgspec.structs import replace

from blockaudit.records.bound import BoundManifest
from blockaudit.records.conformance import Conformance, Identified
from blockaudit.records.contract import Executed, Statement, Testimony
from blockaudit.records.layers import numbers
from blockaudit.reference import assembly


def measured(run: Conformance, bound: BoundManifest) -> Testimony:
    """The witness `measured`. A field that differs in some layers is said to be what it is there.

    `layers` of a statement is empty where it holds for every layer that has the field.
    """
    said: dict[str, Statement] = {}
    # Where a norm's difference was named and verified, its other numbers are that difference seen from elsewhere.
    named = {d.field for d in run.diagnosis if d.group}
    owners = {field.rpartition(".")[0] for field in named}
    for one in sorted(run.identified, key=lambda f: not f.differs):
        if one.differs and one.field not in named and one.field.rpartition(".")[0] in owners:
            continue
        if one.value is not None and one.field not in said:
            layers = _layers(one.field, one.layers, bound)
            said[one.field] = Statement(_value(one), one.evidence, "numbers", layers=layers)
    for edit in run.diagnosis:
        if edit.group:
            evidence = f"the reference with this value agrees with the candidate ({edit.explains:.2%} of the error)"
            if edit.field not in bound.fields:
                continue  # a rule reads it off the diagnosis
            layers = _layers(edit.field, edit.layers, bound)
            said[edit.field] = Statement(edit.value, evidence, "numbers", layers=layers)
    return Testimony("measured", said)


# What an executed witness says of how a layer is put together.
_STRUCTURE = (
    ".present", ".placement", ".reads", ".kind", ".branch_order", ".parallel", ".shortcut_source", ".shortcut_scale",
)  # fmt: skip


def heard(executed: Executed, run: Conformance, bound: BoundManifest) -> Executed:
    """The executed witness beside the run: where edits explain every number, structure is as they say.

    Operators can be read in several ways (a norm that moved is one gone and one new); the edits are one that fits. A
    norm whose site the candidate gives is there, however the operators around it were read.
    """
    missing = {name.removeprefix("encoder.").removeprefix("decoder.") for name in run.missing}
    named = {d.field for d in run.diagnosis if d.group}

    def stays(field: str, said: Statement) -> bool:
        declared = bound.fields.get(field)
        if field in named or not field.endswith(_STRUCTURE) or declared is None or declared.value == said.value:
            return True
        if field.endswith(".present") and said.value is False and ".inner." not in field and not run.recorded:
            return run.explained is not True and any(name.endswith(_site(field)) for name in missing)
        return run.explained is not True

    kept = {f: s for f, s in executed.testimony.statements.items() if stays(f, s)}
    return replace(executed, testimony=Testimony("executed", kept))


def _site(field: str) -> str:
    """`mlp.norm_in` of `decoder.mlp[moe].norm_in.present`: what the names of its sites end with."""
    parts = re.sub(r"\[.*?\]", "", field).split(".")
    site = parts[-2].replace("norm_post", "state")
    return f"{parts[-3]}.{site}" if len(parts) > 3 else site


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
