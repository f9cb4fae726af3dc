"""Tensors that are cut over ranks: the axis is the one along which their sizes add up to the whole."""

from __future__ import annotations

from blockaudit.migrate.draft.ends import Ends
from blockaudit.migrate.draft.pairs import FUSED, Pair
from blockaudit.migrate.draft.pieces import Piece
from blockaudit.migrate.draft.undecidable import Undecidable
from blockaudit.records.operations import Concat, Operation, Replicated

AXIS = "r"


def joined_over_ranks(pair: Pair, ends: Ends) -> list[Operation]:
    """What makes one tensor of the ranks' parts; nothing for a source that is not cut. Raises Undecidable."""
    if not ends.ranks:
        return []
    cuts = {_cut(source, ends) for source in pair.sources}
    if len(cuts) > 1:
        raise Undecidable("the tensors that become one are cut over ranks along different axes")
    cut = cuts.pop()
    if cut is None:
        return [Replicated(axis=AXIS)]
    if cut == 0 and ends.ranks > 1 and any(piece.place.role in FUSED for piece in pair.sources):
        raise Undecidable(
            "its rows are cut over ranks, and no shape says whether each rank has all of its parts or one of them"
        )
    return [Concat(dim=cut, axis=AXIS)]


def _cut(source: Piece, ends: Ends) -> int | None:
    """The axis that is cut; None where every rank holds the whole. Raises Undecidable."""
    keys, whole = ends.stored(source), source.expected.shape
    if not keys:
        raise Undecidable("not every rank stores it")
    shapes = [ends.types[key].shape for key in keys]
    if all(shape == whole for shape in shapes):
        return None
    if any(len(shape) != len(whole) for shape in shapes):
        raise Undecidable(f"a rank holds {list(shapes[0])} of {list(whole)}")
    fits = [dim for dim in range(len(whole)) if _adds_up(shapes, whole, dim)]
    if len(fits) != 1:
        raise Undecidable(f"the parts of the ranks ({list(shapes[0])}) do not make the whole ({list(whole)})")
    return fits[0]


def _adds_up(shapes: list[tuple[int, ...]], whole: tuple[int | None, ...], dim: int) -> bool:
    others = all(s[:dim] + s[dim + 1 :] == whole[:dim] + whole[dim + 1 :] for s in shapes)
    return others and sum(s[dim] for s in shapes) == whole[dim]
