"""What is done on the way from a place to the same place: read off the two manifests, or off the shapes of ranks.

Linear maps are worked on as [out, in]: one that is stored the other way round is turned first, and turned back at the
end where the target stores it so.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockaudit.migrate.draft.ends import Ends
from blockaudit.migrate.draft.fused import between_layouts
from blockaudit.migrate.draft.pairs import Pair
from blockaudit.migrate.draft.pieces import Piece
from blockaudit.migrate.draft.ranks import joined_over_ranks
from blockaudit.migrate.draft.undecidable import Undecidable
from blockaudit.records.operations import Add, Cast, Operation, Slice, Stack, Transpose, Unstack

# A dimension that holds more rows than a vocabulary has tokens, as manifests call it.
_PADDED = "_padded"
_WHY_PADDED = "rows that pad the dimension, which the source's manifest names apart: no id has them"


def operations(pair: Pair, ends: Ends) -> list[Operation]:
    """The operations of one pair, in order; none where the bytes stay what they are. Raises Undecidable."""
    source, target = pair.sources[0], pair.targets[0]
    opened, closed = _experts(source, target)
    rank = len(source.expected.shape) - len(opened)
    # Axes in front of those of the matrix: of experts that stay in one tensor.
    at = max(rank - 2, 0)
    inner = between_layouts(pair, ends, at)
    turned = [piece.expected.layout == "in_out" for piece in (source, target)]
    turn: list[Operation] = [Transpose(dims=(at, at + 1))]
    turns = rank >= 2 and (turned[0] != turned[1] or bool(inner))
    return [
        *joined_over_ranks(pair, ends),
        *opened,
        *(turn if turns and turned[0] else []),
        *inner,
        *(turn if turns and turned[1] else []),
        *closed,
        *_unpadded(source, target, ends),
        *_offset(source, target, ends),
    ]


def _experts(source: Piece, target: Piece) -> tuple[Sequence[Operation], Sequence[Operation]]:
    """What takes a tensor of all experts apart, and what lays the experts' tensors together. Raises Undecidable."""
    mine, theirs = source.axes, target.axes
    if len(mine) == len(theirs):
        return (), ()
    if len(mine) + len(theirs) != 1:
        raise Undecidable(f"axes {_named(mine)} of the source become {_named(theirs)}")
    return ((), (Stack(dim=0, axis=mine[0]),)) if mine else ((Unstack(dim=0, axis=theirs[0]),), ())


def _named(axes: Sequence[str]) -> str:
    return ", ".join(f"{{{a}}}" for a in axes) or "none"


def _unpadded(source: Piece, target: Piece, ends: Ends) -> list[Operation]:
    """Rows that the source has beyond the target's dimension, where its manifest says that they are padding."""
    found: list[Operation] = []
    symbols = zip(source.expected.symbols, target.expected.symbols, strict=False)
    for dim, (mine, theirs) in enumerate(symbols):
        if mine == theirs + _PADDED and source.expected.shape[dim] != ends.dims.get(theirs):
            found.append(Slice(dim=dim, stop=theirs, size=mine, why=_WHY_PADDED))
    return found


def _offset(source: Piece, target: Piece, ends: Ends) -> list[Operation]:
    """The difference of what either side adds to a stored gain: w' + b = w + a. Raises Undecidable."""
    if target.place.what != "norm" or target.place.role != "weight":
        return []
    a, b = ends.said(f"{target.expected.owner}.scale_offset")
    if a == b:
        return []
    if not isinstance(a, int | float) or not isinstance(b, int | float):
        raise Undecidable("one manifest does not say what is added to the stored gain (w, or 1 + w)")
    # In F32 the sum is exact for narrower gains of ordinary size; in their own dtype it would be rounded.
    stored = ends.stored(source)
    dtype = ends.types[stored[0]].dtype if stored else ""
    widened = [Cast(dtype="F32", back=dtype)] if dtype in ("BF16", "F16") else []
    return [*widened, Add(value=float(a - b))]
