"""q, k and v of one fused tensor, by hand: rows are named by what they are."""

from __future__ import annotations

import pytest
import torch

from blockaudit.migrate import ops
from blockaudit.migrate.ops.base import OperationError
from blockaudit.records.operations import Concat, HeadLayout, Split
from tests.migrate.ops.states import after, lists, numbered, only, row, types

# Heads of two rows. Row j of head h of q is 10 h + j, of k 100 + 10 h + j, of v 200 + 10 h + j.
Q = [0, 1, 10, 11, 20, 21, 30, 31]
K, V = [100, 101, 110, 111], [200, 201, 210, 211]
GROUPS = [0, 1, 10, 11, 100, 101, 200, 201, 20, 21, 30, 31, 110, 111, 210, 211]  # q q k v, q q k v
PER_HEAD = [0, 1, 100, 101, 200, 201, 10, 11, 110, 111, 210, 211]  # q k v, q k v
FUSED: list[tuple[HeadLayout, int, int, list[int], tuple[list[int], list[int], list[int]]]] = [
    ("per_group", 4, 2, GROUPS, (Q, K, V)),
    ("qkv", 4, 2, [*Q, *K, *V], (Q, K, V)),
    ("per_head", 2, 2, PER_HEAD, (Q[:4], K, V)),
    ("per_group", 2, 2, PER_HEAD, (Q[:4], K, V)),  # one query to a group: the same rows
]


@pytest.mark.parametrize(("layout", "heads", "kv", "fused", "parts"), FUSED)
def test_split(
    layout: HeadLayout, heads: int, kv: int, fused: list[int], parts: tuple[list[int], list[int], list[int]]
) -> None:
    op = Split(layout=layout, heads=heads, kv_heads=kv)
    assert lists(after(row(torch.tensor(fused)), op)) == [list(parts)]


@pytest.mark.parametrize(("layout", "heads", "kv", "fused", "parts"), FUSED)
def test_concat(
    layout: HeadLayout, heads: int, kv: int, fused: list[int], parts: tuple[list[int], list[int], list[int]]
) -> None:
    op = Concat(layout=layout, heads=heads, kv_heads=kv)
    assert only(after(row(*(torch.tensor(p) for p in parts)), op)) == fused


def test_the_output_axis_may_be_the_last() -> None:
    fused = torch.stack([torch.tensor(GROUPS), torch.tensor(GROUPS) + 1000])
    found = lists(after(row(fused), Split(dim=-1, layout="per_group", heads=4, kv_heads=2)))
    assert found == [[[Q, [n + 1000 for n in Q]], [K, [n + 1000 for n in K]], [V, [n + 1000 for n in V]]]]


@pytest.mark.parametrize(
    ("op", "rows", "said"),
    [
        (Split(layout="per_group", heads=4, kv_heads=3), 20, "4 query heads are no multiple of 3"),
        (
            Split(layout="per_group", heads=4, kv_heads=2),
            12,
            "needs rows for 4 + 2 * 2 heads, and 12 is no multiple of 8",
        ),
        (Split(layout="per_head", heads=4, kv_heads=2), 16, "layout per_head has as many key/value heads as heads: 4"),
        (Split(layout="qkv"), 16, "needs heads (layout qkv) as a whole number"),
        (Split(layout="qkv", heads=4, kv_heads=0), 16, "no multiple of 0"),
    ],
)
def test_what_cannot_be_cut(op: Split, rows: int, said: str) -> None:
    with pytest.raises(OperationError) as raised:
        ops.types_after([op], types(row(numbered(rows, 3))))
    assert said in str(raised.value)


def test_parts_of_other_heads_are_not_joined() -> None:
    op = Concat(layout="per_group", heads=4, kv_heads=2)
    with pytest.raises(
        OperationError, match=r"q, k and v of these heads have \[8, 4, 4\] rows, and there are \[4, 8, 4\]"
    ):
        ops.types_after([op], types(row(numbered(4), numbered(8), numbered(4))))
    with pytest.raises(OperationError, match="joins q, k and v, and there are 2 tensors"):
        ops.types_after([op], types(row(numbered(8), numbered(8))))
