"""permute_rope: rows of a q or k projection, reordered between the two pairings of rotary coordinates.

A head of d rows whose first r turn (r = d unless the rotary part is partial). Interleaved, rows 2 i and 2 i + 1 are the
pair i (Su et al. 2021, RoFormer, eq. 34; Meta's LLaMA); half-split, rows i and i + r / 2 (GPT-NeoX, and transformers'
`rotate_half`). So half-split row i + j r / 2 is interleaved row 2 i + j, for j in 0, 1 (transformers 4.46.3:
models/llama/convert_llama_weights_to_hf.py: permute).
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from blockaudit.migrate.ops.base import Handler, OperationError, axis_of, each, number
from blockaudit.records.migration import State, TensorType
from blockaudit.records.operations import Operation, PermuteRope


def _head(op: PermuteRope, rows: int) -> tuple[int, int, int]:
    """Heads, rows of one, rows of one that turn."""
    heads = number(op.heads, "heads")
    if not heads or rows % heads:
        raise OperationError(f"needs rows that {heads} heads share equally, and there are {rows}")
    size = rows // heads
    turned = size if op.rotary_dim is None else number(op.rotary_dim, "rotary_dim")
    if turned % 2 or turned > size:
        raise OperationError(f"turns {turned} of {size} rows of a head: an even number of them is needed")
    return heads, size, turned


def _types(op: PermuteRope, state: State[TensorType]) -> State[TensorType]:
    if op.from_ is None or op.to is None:
        raise OperationError("needs from and to (half, interleaved): no manifest says which pairing it starts from")

    def act(given: TensorType) -> TensorType:
        _head(op, given.shape[axis_of(op.dim, given.shape)])
        return given

    return each(op, state, act)


def _apply(op: PermuteRope, state: State[Any]) -> State[Any]:
    def act(given: Any) -> Any:
        import torch

        heads, size, turned = _head(op, given.shape[op.dim])
        axis = op.dim % given.ndim
        split = given.reshape(*given.shape[:axis], heads, size, *given.shape[axis + 1 :])
        first, rest = split.narrow(axis + 1, 0, turned), split.narrow(axis + 1, turned, size - turned)
        pairs = (turned // 2, 2) if op.from_ == "interleaved" else (2, turned // 2)
        paired = first.reshape(*first.shape[: axis + 1], *pairs, *first.shape[axis + 2 :])
        first = paired.transpose(axis + 1, axis + 2).reshape(first.shape)
        return torch.cat([first, rest], axis + 1).reshape(given.shape)

    return state if op.from_ == op.to else each(op, state, act)


def _inverse(op: PermuteRope, before: State[TensorType]) -> Operation:
    del before
    return _back(op)


def _back(op: PermuteRope) -> Operation:
    return replace(op, from_=op.to, to=op.from_)


HANDLERS: dict[type[Any], Handler] = {PermuteRope: Handler(_types, _apply, _inverse, _back)}
