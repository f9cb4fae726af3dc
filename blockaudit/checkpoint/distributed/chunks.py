"""Whether the chunks of a tensor are the tensor: each inside it, no two in the same place, and nothing left out."""

from __future__ import annotations

from math import prod

from blockaudit.checkpoint.distributed.metadata import Chunk, Shape, Tensor

# Comparisons over all tensors: a grid of 100 x 100 chunks takes 500,000, one of 10,000 rows 10,000.
MAX_COMPARISONS = 3_000_000


class Budget:
    """Comparisons that are left: a hostile file may ask for any number."""

    def __init__(self, left: int = MAX_COMPARISONS) -> None:
        self.left = left


def flaw(tensor: Tensor, budget: Budget) -> str:
    """What is wrong with the chunks of a tensor, empty where nothing is."""
    outside = next((c for c in tensor.chunks if not _inside(c, tensor.shape)), None)
    if outside is not None:
        return (
            f"has a chunk of shape {list(outside.sizes)} at {list(outside.offsets)}, "
            f"which a tensor of shape {list(tensor.shape)} has no room for"
        )
    filled = [c for c in tensor.chunks if prod(c.sizes)]
    held, whole = sum(prod(c.sizes) for c in filled), prod(tensor.shape)
    twice = _overlap(filled, budget)
    if twice is not None:
        return f"has two chunks that share elements, at {list(twice[0].offsets)} and {list(twice[1].offsets)}"
    if budget.left <= 0:
        return f"is cut into {len(filled):,} chunks, more than can be held against each other"
    if held < whole:
        return f"has chunks for {held:,} of its {whole:,} elements: {whole - held:,} are nowhere"
    return ""


def _inside(chunk: Chunk, shape: Shape) -> bool:
    return len(chunk.offsets) == len(chunk.sizes) == len(shape) and all(
        offset + size <= whole for offset, size, whole in zip(chunk.offsets, chunk.sizes, shape, strict=True)
    )


def _overlap(chunks: list[Chunk], budget: Budget) -> tuple[Chunk, Chunk] | None:
    """The first two boxes that meet. They are swept along the axis on which most of them differ."""
    if len(chunks) < 2:
        return None
    rank = len(chunks[0].offsets)
    if rank == 0:
        return chunks[0], chunks[1]
    axis = max(range(rank), key=lambda i: len({c.offsets[i] for c in chunks}))
    active: list[Chunk] = []
    for chunk in sorted(chunks, key=lambda c: c.offsets[axis]):
        active = [c for c in active if c.offsets[axis] + c.sizes[axis] > chunk.offsets[axis]]
        budget.left -= len(active) + 1
        if budget.left <= 0:
            return None
        other = next((c for c in active if _meet(c, chunk)), None)
        if other is not None:
            return other, chunk
        active.append(chunk)
    return None


def _meet(a: Chunk, b: Chunk) -> bool:
    return all(x < y + m and y < x + n for x, n, y, m in zip(a.offsets, a.sizes, b.offsets, b.sizes, strict=True))
