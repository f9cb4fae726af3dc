"""The Meta/HF permutation of rotary rows, by hand.

Interleaved, rows 2 i and 2 i + 1 of a head turn together; half-split, rows i and i + d / 2. So the half-split head is
the even rows of the interleaved one, then the odd ones.
"""

from __future__ import annotations

import pytest
import torch

from blockaudit.migrate import ops
from blockaudit.migrate.ops.base import OperationError
from blockaudit.records.operations import PermuteRope
from tests.migrate.library.layouts.equations import attended, heads, turned
from tests.migrate.ops.states import after, lists, numbered, only, row, types

TO_HALF = PermuteRope(heads=2, from_="interleaved", to="half")
TO_PAIRS = PermuteRope(heads=2, from_="half", to="interleaved")


def test_two_heads_of_four_rows() -> None:
    assert only(after(row(numbered(8)), TO_HALF)) == [0, 2, 1, 3, 4, 6, 5, 7]


def test_two_heads_of_eight_rows() -> None:
    expected = [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    assert only(after(row(numbered(16)), TO_HALF)) == expected


def test_two_heads_of_eight_rows_the_other_way() -> None:
    expected = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    assert only(after(row(numbered(16)), TO_PAIRS)) == expected


def test_one_head_of_eight_rows_is_another_order_than_two_of_four() -> None:
    op = PermuteRope(heads=1, from_="interleaved", to="half")
    assert only(after(row(numbered(8)), op)) == [0, 2, 4, 6, 1, 3, 5, 7]


def test_whole_rows_move() -> None:
    matrix = torch.tensor([[0, 100], [1, 101], [2, 102], [3, 103], [4, 104], [5, 105], [6, 106], [7, 107]])
    moved = [[0, 100], [2, 102], [1, 101], [3, 103], [4, 104], [6, 106], [5, 105], [7, 107]]
    assert only(after(row(matrix), TO_HALF)) == moved


def test_rows_along_the_second_axis() -> None:
    op = PermuteRope(heads=1, from_="interleaved", to="half", dim=1)
    assert only(after(row(torch.tensor([[0, 1, 2, 3], [10, 11, 12, 13]])), op)) == [[0, 2, 1, 3], [10, 12, 11, 13]]


def test_rows_that_do_not_turn_stay() -> None:
    # Two heads of 6 rows, of which the first 4 turn.
    op = PermuteRope(heads=2, from_="interleaved", to="half", rotary_dim=4)
    assert only(after(row(numbered(12)), op)) == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]


def test_one_pairing_to_itself_changes_nothing() -> None:
    assert only(after(row(numbered(8)), PermuteRope(heads=2, from_="half", to="half"))) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_at_picks_q_and_leaves_v() -> None:
    op = PermuteRope(heads=1, from_="interleaved", to="half", at=0)
    assert lists(after(row(numbered(4), numbered(4)), op)) == [[[0, 2, 1, 3], [0, 1, 2, 3]]]


def test_agrees_with_the_published_permutation() -> None:
    """transformers 4.46.3, convert_llama_weights_to_hf.py, and torchtitan 0.3.0, llama3/state_dict_adapter.py."""
    source = numbered(32, 5)
    expected = source.view(4, 32 // 4 // 2, 2, 5).transpose(1, 2).reshape(32, 5)
    op = PermuteRope(heads=4, from_="interleaved", to="half")
    assert torch.equal(ops.apply([op], row(source))[0].values[0], expected)


def test_attention_is_the_same_function_in_either_pairing() -> None:
    """What the permutation is for: scores of permuted projections, turned half-split, are those of the others."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(1, 7, 16, generator=draw, dtype=torch.float64)
    q, k, v = (torch.randn(n, 16, generator=draw, dtype=torch.float64) for n in (16, 8, 8))
    half_q, half_k = (
        ops.apply([PermuteRope(heads=n, from_="interleaved", to="half")], row(t))[0].values[0]
        for n, t in ((4, q), (2, k))
    )

    def read(wq: torch.Tensor, wk: torch.Tensor, pairs: str) -> torch.Tensor:
        a, b = (turned(heads(x @ w.T, n), 1e4, pairs=pairs) for n, w in ((4, wq), (2, wk)))
        return attended(a, b, heads(x @ v.T, 2))

    wanted = read(q, k, "interleaved")
    assert torch.allclose(read(half_q, half_k, "half"), wanted, rtol=0, atol=1e-12)
    assert not torch.allclose(read(q, k, "half"), wanted, rtol=0, atol=1e-2)
    wrong = ops.apply([PermuteRope(heads=2, from_="interleaved", to="half")], row(q))[0].values[0]
    assert not torch.allclose(read(wrong, half_k, "half"), wanted, rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (
            PermuteRope(heads=3, from_="half", to="interleaved"),
            "needs rows that 3 heads share equally, and there are 8",
        ),
        (PermuteRope(heads=0, from_="half", to="interleaved"), "needs rows that 0 heads share equally"),
        (PermuteRope(heads=8, from_="half", to="interleaved"), "turns 1 of 1 rows of a head: an even number"),
        (PermuteRope(heads=2, from_="half", to="interleaved", rotary_dim=6), "turns 6 of 4 rows"),
        (PermuteRope(heads=2, from_="half", to="interleaved", rotary_dim=3), "turns 3 of 4 rows"),
        (PermuteRope(heads=2, to="half"), "needs from and to"),
        (PermuteRope(heads="n_heads", from_="half", to="interleaved"), "needs heads as a whole number"),
        (PermuteRope(heads=2, from_="half", to="interleaved", dim=1), "needs axis 1, and the shape is [8]"),
    ],
)
def test_what_cannot_be_permuted(op: PermuteRope, said: str) -> None:
    with pytest.raises(OperationError) as raised:
        ops.types_after([op], types(row(numbered(8))))
    assert str(raised.value).startswith("operation 1 (permute_rope): ")
    assert said in str(raised.value)
