"""The operations of a migration map (contract section 7), as data. What each does stands in `migrate.ops`."""

from __future__ import annotations

from typing import Literal

from blockaudit.records.values import Struct

# A number, or an expression over the dimension symbols of the manifests (`n_heads`), worked out when a map is planned.
Size = int | str
Pairing = Literal["half", "interleaved"]
HeadLayout = Literal["qkv", "per_head", "per_group"]


class _Operation(Struct, frozen=True, tag_field="op"):
    """`at` picks the values of a row, counted from 0, that an operation acts on; absent: all of them."""


class Transpose(_Operation, frozen=True, tag="transpose"):
    """Swap two axes; of a matrix, its two."""

    dims: tuple[int, int] = (0, 1)
    at: int | list[int] | None = None


class Split(_Operation, frozen=True, tag="split"):
    """Cut one tensor along `dim` into as many as `to` names.

    Without `layout`: parts of `sizes`, else equal ones, in the order of `to`. With it q, k and v in this order, from
    rows that lie as `layout` says: all q, all k, all v (`qkv`); q, k, v of each head (`per_head`); the queries of a
    group, its k, its v (`per_group`, with heads / kv_heads queries to a group).
    `axis`: the parts are spread over this axis of `to` (one per rank), `count` of them.
    """

    dim: int = 0
    layout: HeadLayout | None = None
    heads: Size | None = None
    kv_heads: Size | None = None
    sizes: list[Size] | None = None
    axis: str | None = None
    count: Size | None = None


class Concat(_Operation, frozen=True, tag="concat"):
    """Join the tensors of a row along `dim`: the inverse of `split`, with the same words.

    `axis`: join over this axis of `from` instead, each value with those of its own place in the row.
    """

    dim: int = 0
    layout: HeadLayout | None = None
    heads: Size | None = None
    kv_heads: Size | None = None
    sizes: list[Size] | None = None
    axis: str | None = None
    count: Size | None = None


class Stack(_Operation, frozen=True, tag="stack"):
    """Lay tensors side by side on a new axis `dim`: those of an axis of `from` (`e`), else those of the row."""

    dim: int = 0
    axis: str | None = None
    count: Size | None = None


class Unstack(_Operation, frozen=True, tag="unstack"):
    """Take the slices of axis `dim` apart: over an axis of `to` (`e`), else into the row. The inverse of `stack`."""

    dim: int = 0
    axis: str | None = None
    count: Size | None = None


class Replicated(_Operation, frozen=True, tag="replicated"):
    """Every place of `axis` (a rank) holds the same bytes, which is proved as they are read; one is kept."""

    axis: str = "r"
    count: Size | None = None


class PermuteRope(_Operation, frozen=True, tag="permute_rope", rename={"from_": "from"}):
    """Reorder the rows of a q or k projection between the pairings of rotary coordinates.

    In a head of d rows, row i turns with row i + d / 2 (`half`), or row 2 i with row 2 i + 1 (`interleaved`).
    `heads` is the head count of this projection (kv heads for k). `rotary_dim`: only the first rows of a head turn.
    Where `from` and `to` are not given, they are the pairings of the source's and the target's manifest.
    """

    heads: Size
    from_: Pairing | None = None
    to: Pairing | None = None
    rotary_dim: Size | None = None
    dim: int = 0
    at: int | list[int] | None = None


class Slice(_Operation, frozen=True, tag="slice"):
    """Keep elements `start` to `stop` of axis `dim`. What is cut off is lost: `why` says that nothing reads it.

    `size` is how long the axis was, for the way back, which pads with zeros.
    """

    stop: Size
    size: Size | None = None
    start: Size = 0
    dim: int = 0
    why: str = ""
    at: int | list[int] | None = None


class Pad(_Operation, frozen=True, tag="pad"):
    """Lengthen axis `dim` to `size` with `value`, at its end."""

    size: Size
    dim: int = 0
    value: float = 0.0
    why: str = ""
    at: int | list[int] | None = None


class Add(_Operation, frozen=True, tag="add"):
    """Add a number to every element: a gain stored as w and read as 1 + w, against one read as it is."""

    value: float
    at: int | list[int] | None = None


class Scale(_Operation, frozen=True, tag="scale"):
    """Multiply every element by a number, or by an expression over dimension symbols (`d_model ** 0.5`)."""

    value: float | str
    at: int | list[int] | None = None


class Fold(_Operation, frozen=True, tag="fold"):
    """Multiply the tensors of a row, along their axis `dim`, by the last one, a vector, which is used up.

    `offset` is added to the vector first (1 for a gain that is read as 1 + w).
    """

    dim: int = -1
    offset: float = 0.0


class Cast(_Operation, frozen=True, tag="cast"):
    """Convert to `dtype`, as safetensors or torch spell it (`BF16`, `bfloat16`), rounding to nearest even.

    `back` is the dtype that it came from, for the way back.
    """

    dtype: str
    back: str | None = None
    why: str = ""
    at: int | list[int] | None = None


Operation = (
    Transpose | Split | Concat | Stack | Unstack | Replicated | PermuteRope | Slice | Pad | Add | Scale | Fold | Cast
)
