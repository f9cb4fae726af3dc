"""How the rows of q, k and v lie in one fused tensor, as slices of it.

Row layouts, for h query heads and g key/value heads of d rows each:
- `qkv`: the h d rows of q, the g d of k, the g d of v (transformers' Phi-3, Meta's fused wqkv).
- `per_head`: head by head its q, k, v; h = g (GPT-NeoX, BLOOM, Megatron-LM checkpoint version 2 and later).
- `per_group`: group by group its h / g queries, its k, its v (Megatron-core `linear_qkv`, Falcon's new decoder).
"""

from __future__ import annotations

from typing import Any

from blockaudit.migrate.ops.base import OperationError, number
from blockaudit.records.operations import Concat, Split


def counts(op: Split | Concat) -> tuple[int, int]:
    """Query heads and key/value heads. Raises OperationError."""
    heads = number(op.heads, f"heads (layout {op.layout})")
    kv = heads if op.kv_heads is None else number(op.kv_heads, "kv_heads")
    if not heads or not kv or heads % kv:
        raise OperationError(f"{heads} query heads are no multiple of {kv} key/value heads")
    if op.layout == "per_head" and heads != kv:
        raise OperationError(f"layout per_head has as many key/value heads as heads: {heads}, and there are {kv}")
    return heads, kv


def rows(op: Split | Concat, total: int) -> tuple[int, int, int]:
    """Rows of q, k and v among `total`. Raises OperationError."""
    heads, kv = counts(op)
    if total % (heads + 2 * kv):
        raise OperationError(f"needs rows for {heads} + 2 * {kv} heads, and {total} is no multiple of {heads + 2 * kv}")
    size = total // (heads + 2 * kv)
    return heads * size, kv * size, kv * size


def cut(op: Split, fused: Any) -> tuple[Any, Any, Any]:
    """q, k and v of a fused torch tensor, whose rows lie along `dim`."""
    axis = op.dim % fused.ndim
    q, k, v = rows(op, fused.shape[axis])
    if op.layout == "qkv":
        return tuple(fused.split([q, k, v], axis))
    heads, kv = counts(op)
    size, tail = k // kv, fused.shape[axis + 1 :]
    grouped = fused.reshape(*fused.shape[:axis], kv, heads // kv + 2, size, *tail)
    parts = grouped.split([heads // kv, 1, 1], axis + 1)
    return tuple(part.reshape(*fused.shape[:axis], n, *tail) for part, n in zip(parts, (q, k, v), strict=True))  # pyright: ignore[reportReturnType]


def join(op: Concat, parts: tuple[Any, ...]) -> Any:
    """The fused torch tensor of q, k and v: the inverse of `cut`."""
    import torch

    axis = op.dim % parts[0].ndim
    if op.layout == "qkv":
        return torch.cat(parts, axis)
    heads, kv = counts(op)
    size, tail = parts[1].shape[axis] // kv, parts[0].shape[axis + 1 :]
    grouped = [
        part.reshape(*part.shape[:axis], kv, n, size, *tail) for part, n in zip(parts, (heads // kv, 1, 1), strict=True)
    ]
    total = (heads + 2 * kv) * size
    return torch.cat(grouped, axis + 1).reshape(*parts[0].shape[:axis], total, *tail)
