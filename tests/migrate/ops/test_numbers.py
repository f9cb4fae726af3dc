"""Operations that change numbers, by hand: what is exact, what is rounded once, and what cannot come back."""

from __future__ import annotations

import pytest
import torch

from blockaudit.migrate import ops
from blockaudit.migrate.ops.base import OperationError
from blockaudit.migrate.ops.numbers import dtype_name
from blockaudit.records.migration import TensorType
from blockaudit.records.operations import Add, Cast, Fold, Operation, Scale
from tests.migrate.ops.states import after, lists, numbered, only, row, types


def test_one_less() -> None:
    assert only(after(row(torch.tensor([0.25, 1.0, 2.5])), Add(value=-1.0))) == [-0.75, 0.0, 1.5]


def test_a_gain_of_bf16_needs_the_cast_to_come_back() -> None:
    """0.3 is 0.30078125 in BF16; less one it is -0.69921875, between -0.69921875 and no other number of 8 digits."""
    gains = torch.tensor([0.30078125, 0.0123291015625], dtype=torch.bfloat16)
    exact = after(row(gains), Cast(dtype="F32"), Add(value=-1.0))
    assert only(exact) == [-0.69921875, -0.9876708984375]
    assert torch.equal(after(exact, Add(value=1.0), Cast(dtype="BF16"))[0].values[0], gains)
    rounded = after(row(gains), Add(value=-1.0), Add(value=1.0))[0].values[0]
    assert rounded.tolist() == [0.30078125, 0.01171875]  # the second has lost bits


def test_a_scale_is_rounded_once() -> None:
    """1/3 of 3 is 1 in BF16: the factor is not rounded to BF16 before it multiplies."""
    assert only(after(row(torch.tensor([3.0], dtype=torch.bfloat16)), Scale(value=1 / 3))) == [1.0]


def test_fold_multiplies_along_its_axis() -> None:
    matrix, gain = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([10.0, 100.0])
    assert only(after(row(matrix, gain), Fold())) == [[10.0, 200.0], [30.0, 400.0]]
    assert only(after(row(matrix, gain), Fold(dim=0))) == [[10.0, 20.0], [300.0, 400.0]]
    assert only(after(row(matrix, gain), Fold(offset=1.0))) == [[11.0, 202.0], [33.0, 404.0]]


def test_one_vector_is_folded_into_each_of_several_tensors() -> None:
    """A norm's gain into q, k and v behind it."""
    found = after(row(torch.ones(1, 2), torch.full((2, 2), 2.0), torch.tensor([3.0, 5.0])), Fold())
    assert lists(found) == [[[[3.0, 5.0]], [[6.0, 10.0], [6.0, 10.0]]]]


def test_cast_rounds_to_nearest_even() -> None:
    """Half way between two numbers of BF16, the one with an even last digit."""
    given = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8])
    assert only(after(row(given), Cast(dtype="BF16"))) == [1.0, 1 + 2.0**-6]


def test_at_casts_one_of_two() -> None:
    found = after(row(torch.tensor([1.5]), torch.tensor([1.5])), Cast(dtype="bfloat16", at=1))
    assert [t.dtype for t in found[0].values] == [torch.float32, torch.bfloat16]
    assert lists(found) == [[[1.5], [1.5]]]


@pytest.mark.parametrize(("said", "name"), [("bfloat16", "BF16"), ("torch.float16", "F16"), ("F8_E4M3", "F8_E4M3")])
def test_either_spelling_of_a_dtype(said: str, name: str) -> None:
    assert dtype_name(said) == name


@pytest.mark.parametrize(
    ("source", "dtype", "back"),
    [
        ("BF16", "F32", "BF16"), ("F16", "F32", "F16"), ("F32", "F64", "F32"), ("F32", "F32", "F32"),
        ("F32", "BF16", None), ("F16", "BF16", None), ("BF16", "F16", None), ("I64", "F64", None),
    ],
)  # fmt: skip
def test_which_casts_come_back(source: str, dtype: str, back: str | None) -> None:
    """F16 has digits that BF16 lacks, and BF16 powers of two that F16 lacks."""
    before = row(torch.zeros(1))
    given = ops.types_after([], types(before))[0]
    given = tuple(type(r)(r.at, (TensorType(source, (1,)),)) for r in given)
    found = ops.inverse([Cast(dtype=dtype)], ops.types_after([Cast(dtype=dtype)], given))
    assert found == ([Cast(dtype=back)] if back is not None else Cast(dtype=dtype))


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (Add(value=1.0), "add needs floating point, and the tensor is I64"),
        (Scale(value=2.0), "scale needs floating point, and the tensor is I64"),
        (Scale(value=0.0), "needs a factor that is not 0"),
        (Scale(value="d_model ** 0.5"), "needs a factor that is not 0, and has 'd_model ** 0.5'"),
        (Fold(), "fold needs floating point"),
        (Cast(dtype="float12"), "knows no dtype 'float12': give one of F64, F32, F16, BF16"),
    ],
)
def test_what_cannot_be_computed(op: Operation, said: str) -> None:
    with pytest.raises(OperationError) as raised:
        ops.types_after([op], types(row(numbered(4, dtype=torch.int64))))
    assert said in str(raised.value)


def test_a_fold_needs_a_vector_of_its_axis() -> None:
    with pytest.raises(OperationError, match=r"axis 1 of \[2, 3\] by a vector of \[2\], not one of \[3\]"):
        ops.types_after([Fold()], types(row(numbered(2, 3), numbered(2))))
    with pytest.raises(OperationError, match="and there is one tensor"):
        ops.types_after([Fold()], types(row(numbered(2, 3))))
