"""The columns that branches stand in: one for each branch of the widest add, the same down a whole stack."""

from __future__ import annotations

from collections.abc import Sequence

from blockaudit.records.wiring import AddMark, BranchMark
from blockaudit.report.layout import cells
from blockaudit.report.wiring.shapes import ShapeKind, label, shape

# Empty columns between the stream, or what stands on it, and the first branch; and between two branches.
_GAP = 3


def order(add: AddMark) -> list[BranchMark]:
    """The branches of an add as they stand beside each other: those that read one norm together."""
    first = {b.norm_in: i for i, b in reversed(list(enumerate(add.branches)))}
    return sorted(add.branches, key=lambda b: first[b.norm_in] if b.norm_in else add.branches.index(b))


def box(branch: BranchMark) -> list[str]:
    """The lines in the box of a branch: what it is, the norms inside it, what else is done there."""
    # `gated_mlp` says `mlp` too; `moe` does not.
    name = [label(branch.name)] if branch.name not in branch.kind else []
    inner = [label(f"{_place(n.site)}: {n.label}") for n in branch.inner]
    return [*name, label(branch.kind), *inner, *map(label, branch.notes)]


def after(branch: BranchMark) -> list[tuple[ShapeKind, str, str]]:
    """What the update of a branch passes on its way to the add: (kind, text, site)."""
    found: list[tuple[ShapeKind, str, str]] = []
    if branch.norm_out is not None:
        found.append(("norm", label(branch.norm_out.label), branch.norm_out.site))
    if branch.factor:
        found.append(("factor", times(branch.factor), ""))
    return found


def times(text: str) -> str:
    """A factor as it stands on a line."""
    return f"\u00d7 {label(text)}"


def middles(adds: Sequence[AddMark]) -> list[int]:
    """The middle of every column, counted from the stream: wide enough for every add of a stack."""
    count = max((len(a.branches) for a in adds), default=0)
    on_stream = [shape("factor", [times(a.shortcut)], 0, 0).width // 2 for a in adds if a.shortcut]
    right = max(on_stream, default=0)
    found: list[int] = []
    for position in range(count):
        here = [order(a)[position] for a in adds if position < len(a.branches)]
        sides = [_sides(b) for b in here]
        found.append(right + _GAP + max(left for left, _ in sides))
        right = found[-1] + max(side for _, side in sides)
    return found


def _sides(branch: BranchMark) -> tuple[int, int]:
    """Cells that a branch takes left and right of its middle."""
    texts = [shape(kind, [text], 0, 0) for kind, text, _ in after(branch)]
    if branch.norm_in is not None:
        texts.append(shape("norm", [label(branch.norm_in.label)], 0, 0))
    own = shape("box", box(branch), 0, 0)
    half = max(s.width // 2 for s in (own, *texts))
    # What it reads beside the state stands right of its box, behind an arrow.
    beside = own.width // 2 + 4 + cells(label(branch.reads)) if branch.reads else 0
    return half, max(half, beside)


def _place(site: str) -> str:
    """`decoder.self_attention.inner.q` -> `q`."""
    return site.rpartition("inner.")[2] if "inner." in site else site
