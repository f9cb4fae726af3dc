"""What is done on the way from one place to the same place: read off the two manifests, or off the shapes of ranks.

Linear maps are worked on as [out, in]: one that is stored the other way round is turned first, and back at the end
where the target stores it so. Raises Undecidable for what neither manifest nor shape says.
"""

from __future__ import annotations

from typing import Any, cast

from blockaudit.migrate.draft.ends import Ends
from blockaudit.migrate.draft.pairs import Pair
from blockaudit.migrate.draft.pieces import Piece
from blockaudit.migrate.draft.ranks import joined_over_ranks
from blockaudit.migrate.draft.turning import turned, turned_gain
from blockaudit.migrate.draft.undecidable import Undecidable
from blockaudit.records.operations import (
    Add,
    Cast,
    Concat,
    HeadLayout,
    Operation,
    Slice,
    Split,
    Stack,
    Transpose,
    Unstack,
)

_LAYOUTS = ("qkv", "per_head", "per_group")


def operations(pair: Pair, ends: Ends) -> list[Operation]:
    """The operations of one pair, in order; none where the bytes stay what they are."""
    source, target = pair.sources[0], pair.targets[0]
    opened, closed = _experts(source, target)
    at = _leading(source, target)
    turns = source.expected.layout, target.expected.layout
    inner = _inner(pair, ends, at)
    transposes = _is_matrix(target, at) and (turns[0] != turns[1] or bool(inner))
    ops: list[Operation] = [*joined_over_ranks(pair, ends), *opened]
    if transposes and turns[0] == "in_out":
        ops.append(Transpose(dims=(at, at + 1)))
    ops += inner
    if transposes and turns[1] == "in_out":
        ops.append(Transpose(dims=(at, at + 1)))
    ops += closed
    return [*ops, *_unpadded(source, target, ends), *_offset(pair, ends)]


def _is_matrix(piece: Piece, at: int) -> bool:
    return len(piece.expected.shape) - at - bool(piece.axes and not at) * 0 == 2 or (
        at == 0 and len(piece.expected.shape) == 3 and not piece.axes
    )
