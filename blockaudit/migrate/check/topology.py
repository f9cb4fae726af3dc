"""The two contracts, field by field: what no declared operation compensates exactly is another function."""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.manifest.diff import Difference
from blockaudit.migrate.check.differences import changed
from blockaudit.migrate.check.factors import compensates
from blockaudit.migrate.work import Work
from blockaudit.records.checkpoint import Fault
from blockaudit.records.operations import Add

EVIDENCE = (
    "retraining or continued-training evidence: loss and gradient profile of a run from these weights",
    "formula, forward, backward and dtype conformance of the new graph",
    "calibration of mutable statistics, where the new method has any",
)


def topology(work: Work) -> Iterator[Fault]:
    """`topology-change-needs-retraining`, with every field that changes the function."""
    if work.source.bound is None or work.target.bound is None:
        return
    differ = list(changed(work))
    offsets = [d for d in differ if d.field.endswith(".scale_offset")]
    yield from _folded(work, offsets)
    left = [d for d in differ if not _compensated(work, d.field, d.a, d.b)]
    if left:
        yield _flaw(left)


def _added(work: Work, owner: str) -> set[float]:
    """What the map adds to the gain of a norm, by the rules that feed it."""
    found: set[float] = set()
    for step in work.steps:
        for key in step.outputs:
            slot = work.target.slots.get(key)
            if slot is not None and slot.expected.owner == owner and slot.expected.role == "weight":
                found.add(sum(op.value for op in step.ops if isinstance(op, Add)))
    return found


def _compensated(work: Work, field: str, a: object, b: object) -> bool:
    """Whether the gain that is read is the same: w' + b = w + a where w' = w + a - b; or a factor is moved."""
    if not field.endswith(".scale_offset"):
        return compensates(work, field, a, b)
    if not isinstance(a, int | float) or not isinstance(b, int | float):
        return False
    return _added(work, field.rpartition(".")[0]) == {float(a - b)}


def _folded(work: Work, offsets: list[Difference]) -> Iterator[Fault]:
    """An offset added to a gain that both sides read alike, or another one than they differ by."""
    target = work.target.bound
    assert target is not None
    wanted = {d.field: d.a - d.b for d in offsets if isinstance(d.a, int | float) and isinstance(d.b, int | float)}
    wrong: list[tuple[str, float, float]] = []
    for field in target.fields:
        if field.endswith(".scale_offset"):
            needed = float(wanted.get(field, 0.0))
            added = _added(work, field.rpartition(".")[0])
            if added and added != {needed}:
                wrong.append((field, needed, max(added, key=abs)))
    if not wrong:
        return
    field, needed, added = wrong[0]
    owner = field.rpartition(".")[0]
    also = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    yield Fault(
        "scale-offset-mismatch",
        owner,
        f"{owner}{also}: the gain is read as {target.fields[field].value} + weight in the target; to read what the "
        f"source reads, {needed:g} is to be added to its weights, and the map adds {added:g}",
        expected=needed,
        observed=added,
        evidence="rules: add",
    )
    if field not in wanted:
        yield _flaw([Difference(f, "read alike", f"{x:g} added", "function") for f, _, x in wrong])


def _flaw(left: list[Difference]) -> Fault:
    shown = "; ".join(f"{d.field}: {d.a!r} -> {d.b!r}" for d in left[:6]) + ("; ..." if len(left) > 6 else "")
    many = "1 field" if len(left) == 1 else f"{len(left)} fields"
    return Fault(
        "topology-change-needs-retraining",
        left[0].field,
        f"{many} of the contract change and no declared operation compensates them exactly: {shown}. A release of "
        f"this would owe {'; '.join(EVIDENCE)}",
        expected={d.field: d.a for d in left},
        observed={d.field: d.b for d in left},
        evidence="the two manifests, each bound to its own config",
    )
