"""What the two contracts, each bound to its own config, do not agree on: lost with the config, or another function."""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.manifest.align import align
from blockaudit.manifest.bind import bind
from blockaudit.manifest.diff import Difference, apart
from blockaudit.migrate.sides import Side
from blockaudit.migrate.work import Work
from blockaudit.records.bound import BoundManifest, Resolved

# How rows lie is checked where layouts are, and compensated by an operation there.
_LAYOUT = (".fused", ".rotary.pairing", ".window_rotary.pairing")
# How long a context may be bounds what is asked of the function, and does not change it.
_BOUNDS = (".max_length",)


def lost(work: Work) -> Iterator[tuple[Difference, tuple[str, ...]]]:
    """Fields whose value in the target is its class's default, for want of a config key; and those keys."""
    for found, value in _differences(work):
        if value is not None and value.implied and not value.pinned:
            yield found, value.implied


def changed(work: Work) -> Iterator[Difference]:
    """Fields that the target computes otherwise, as its manifest or its config says."""
    for found, value in _differences(work):
        if value is None or not value.implied or value.pinned:
            yield found


def aligned_source(work: Work) -> BoundManifest:
    """The source's manifest, bound to its own config, under the target's names."""
    assert work.source.bound is not None
    assert work.target.bound is not None
    renamed, names = align(work.target.bound.manifest, work.source.bound.manifest)
    if not names:
        return work.source.bound
    return bind(renamed, work.source.config, class_name=work.source.bound.class_name)


def _differences(work: Work) -> Iterator[tuple[Difference, Resolved | None]]:
    target = work.target.bound
    if work.source.bound is None or target is None:
        return
    for found in apart(aligned_source(work), target):
        # Sizes are compared as well: both configs are those of one model.
        if found.changes not in ("function", "size") or found.field.endswith((*_LAYOUT, *_BOUNDS)):
            continue
        mine, theirs = said(work.source, found.field), said(work.target, found.field)
        # What is not known is not another value.
        if all(v is None or v.known for v in (mine, theirs)) and not _alike(work, found):
            yield found, theirs


def _alike(work: Work, found: Difference) -> bool:
    """Whether two values come to the same: all rows of a head that turn, a length that no scaling reads."""
    owner, _, last = found.field.rpartition(".")
    if last == "dim" and owner.endswith("rotary"):
        sizes = (side.function(f"{owner.rpartition('.')[0]}.head_dim") for side in (work.source, work.target))
        a, b = (size if value is None else value for size, value in zip(sizes, (found.a, found.b), strict=True))
        return a == b
    if last == "original_length":
        return all(side.function(f"{owner}.type") == "default" for side in (work.source, work.target))
    return False


def said(side: Side, field: str) -> Resolved | None:
    """What a side's manifest says of a field of the contract, or of a branch's function."""
    return None if side.bound is None else side.bound.fields.get(field, side.bound.functions.get(field))
