"""Axes that close and open (experts, ranks), and parts side by side, by hand."""

from __future__ import annotations

import pytest
import torch

from blockaudit.migrate import ops
from blockaudit.migrate.ops.base import OperationError
from blockaudit.records.migration import Row
from blockaudit.records.operations import Concat, Operation, Pad, Replicated, Slice, Split, Stack, Transpose, Unstack
from tests.migrate.ops.states import after, lists, numbered, only, over, row, types


def test_experts_stack_in_the_order_of_their_numbers() -> None:
    """12 experts: by their text, 10 would stand before 2."""
    state = tuple(Row((("e", n),), (torch.tensor([n]),)) for n in (10, 2, 0, 11, 1, 3, 4, 5, 6, 7, 8, 9))
    assert only(after(state, Stack(axis="e"))) == [[n] for n in range(12)]


def test_gate_and_up_of_each_expert_become_one() -> None:
    state = over("e", (torch.tensor([1]), torch.tensor([2])), (torch.tensor([3]), torch.tensor([4])))
    assert only(after(state, Concat(), Stack(axis="e"))) == [[1, 2], [3, 4]]


def test_unstack_opens_an_axis() -> None:
    found = after(row(torch.tensor([[1, 2], [3, 4]])), Unstack(axis="e"))
    assert [r.at for r in found] == [(("e", 0),), (("e", 1),)]
    assert lists(found) == [[[1, 2]], [[3, 4]]]


def test_ranks_join_along_the_axis_that_they_were_cut_along() -> None:
    state = over("r", (torch.tensor([[1, 2], [5, 6]]),), (torch.tensor([[3, 4], [7, 8]]),))
    assert only(after(state, Concat(dim=1, axis="r"))) == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert only(after(state, Concat(dim=0, axis="r"))) == [[1, 2], [5, 6], [3, 4], [7, 8]]


def test_ranks_and_experts_close_one_after_the_other() -> None:
    state = tuple(Row((("e", e), ("r", r)), (torch.tensor([10 * e + r]),)) for e in range(2) for r in range(2))
    assert only(after(state, Concat(axis="r"), Stack(axis="e"))) == [[0, 1], [10, 11]]


def test_copies_are_proved_byte_by_byte() -> None:
    same = over("r", (torch.tensor([1.0]),), (torch.tensor([1.0]),))
    assert only(after(same, Replicated())) == [1.0]
    # -0.0 equals 0.0, and is other bytes; NaN equals nothing, and is the same bytes.
    assert torch.isnan(ops.apply([Replicated()], over("r", *((torch.tensor([torch.nan]),) for _ in "ab")))[0].values[0])
    with pytest.raises(OperationError, match="copies along axis r hold other bytes"):
        ops.apply([Replicated()], over("r", (torch.tensor([0.0]),), (torch.tensor([-0.0]),)))


def test_unequal_parts() -> None:
    assert lists(after(row(numbered(6)), Split(sizes=[1, 2, 3]))) == [[[0], [1, 2], [3, 4, 5]]]


def test_pad_and_slice() -> None:
    assert only(after(row(numbered(2, 2)), Pad(dim=1, size=3, value=9))) == [[0, 1, 9], [2, 3, 9]]
    assert only(after(row(numbered(2, 3)), Slice(dim=1, start=1, stop=3))) == [[1, 2], [4, 5]]


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (Transpose(), "swaps two axes, and the shape is [6]"),
        (Slice(stop=7), "keeps elements 0 to 7 of axis 0, which has 6"),
        (Slice(start=2, stop=2), "keeps elements 2 to 2"),
        (Pad(size=5), "lengthens axis 0 to 5, and it has 6 already"),
        (Pad(size=9, dim=1), "needs axis 1, and the shape is [6]"),
        (Split(sizes=[2, 3]), "parts of [2, 3] are 5 together, and there are 6"),
        (Split(count=4), "cuts 6 into 4 equal parts"),
        (Split(), "needs the number of parts as a whole number, and has None"),
        (Stack(axis="e"), "nothing runs over axis e: no template of `from` has {e}"),
        (Concat(axis="r"), "nothing runs over axis r"),
        (Unstack(axis="e", count=4), "axis e has 4 places, and there are 6 parts"),
        (Slice(stop=2, at=1), "at names value 1, and there are 1, counted from 0"),
    ],
)
def test_what_does_not_fit(op: Operation, said: str) -> None:
    with pytest.raises(OperationError) as raised:
        ops.types_after([op], types(row(numbered(6))))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (Concat(dim=1), "joins along axis 1 what is alike in every other, and has F32 [2, 2], F32 [3, 2]"),
        (Stack(), "lays tensors of one type together"),
        (Split(count=2), "split acts on one tensor, and there are 2"),
        (Concat(sizes=[3, 2]), "joins parts of [3, 2], and they are [2, 3]"),
    ],
)
def test_what_is_not_alike(op: Operation, said: str) -> None:
    with pytest.raises(OperationError) as raised:
        ops.types_after([op], types(row(numbered(2, 2), numbered(3, 2))))
    assert said in str(raised.value)
