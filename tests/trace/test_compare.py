from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from blockaudit.records.conformance import Difference
from blockaudit.trace import compare
from blockaudit.trace.compare import difference, settle

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _pair(dtype: torch.dtype, *shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    reference = torch.randn(*shape, generator=draw)
    return (reference + 1e-2 * torch.randn(*shape, generator=draw)).to(dtype), reference


def _plain(candidate: Tensor, reference: Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """The same numbers, written as their definitions, in float64."""
    c, r = candidate.double().reshape(-1, candidate.shape[-1]), reference.double().reshape(-1, candidate.shape[-1])
    error = (c - r).abs()
    where = int(error.argmax())
    unit = 2 ** torch.floor(torch.log2(r.abs().clamp_min(torch.finfo(dtype).tiny))) * torch.finfo(dtype).eps
    return {
        "max_abs": float(error.max()),
        "rms_rel": float(error.square().mean().sqrt() / r.square().mean().sqrt()),
        "cosine": float((c * r).sum() / (c.norm() * r.norm())),
        "ulp": float((error / unit).max()),
        "token": where // c.shape[1],
        "channel": where % c.shape[1],
        "row_rel": float((error.norm(dim=-1) / r.norm(dim=-1)).max()),
        "rms": float(r.square().mean().sqrt()),
        "scale": float(r[where // c.shape[1]].abs().max()),
        "elements": c.numel(),
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 8), (5, 700), (1, 1, 1), (300, 1024)], ids=str)
def test_every_metric_is_its_definition(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    candidate, reference = _pair(dtype, *shape)
    found = difference(candidate, reference, dtype=torch.bfloat16).settle()
    for name, value in _plain(candidate, reference, torch.bfloat16).items():
        assert getattr(found, name) == pytest.approx(value, rel=2e-5), name
    assert (found.bits, found.non_finite) == (None, 0)


def test_equal_values_differ_in_nothing() -> None:
    _, reference = _pair(torch.float32, 4, 16)
    found = difference(reference, reference.clone(), dtype=torch.float32, bits_against=reference).settle()
    assert (found.max_abs, found.rms_rel, found.cosine, found.ulp, found.bits) == (0, 0, 1, 0, 0)


def test_cosine_keeps_its_digits_where_the_two_hardly_differ() -> None:
    reference = torch.ones(1, 1000, dtype=torch.float64)
    candidate = reference.clone()
    candidate[0, 0] += 1e-4
    one_minus = 1 - difference(candidate, reference, dtype=torch.float64).settle().cosine
    assert one_minus == pytest.approx(1e-8 / 2000 * (1 - 1 / 1000), rel=1e-2)


@pytest.mark.parametrize(("scale", "cosine"), [(-1.0, -1.0), (2.0, 1.0), (0.0, 0.0)])
def test_cosine_of_directions(scale: float, cosine: float) -> None:
    _, reference = _pair(torch.float32, 4, 16)
    assert difference(reference * scale, reference, dtype=torch.float32).settle().cosine == pytest.approx(cosine)


def test_ulps_count_in_the_dtype_judged() -> None:
    reference = torch.tensor([[1.0, 300.0, -0.01]])
    following = torch.nextafter(reference, torch.full_like(reference, math.inf))
    assert difference(following, reference, dtype=torch.float32).settle().ulp == pytest.approx(1.0)
    in_bfloat16 = difference(reference.bfloat16(), reference, dtype=torch.bfloat16).settle()
    assert 0 < in_bfloat16.ulp <= 0.5


def test_ulps_of_zero_and_subnormal_references_are_finite() -> None:
    reference = torch.tensor([[0.0, 1e-41, 6e-8]])
    for dtype in DTYPES:
        assert math.isfinite(difference(torch.ones(1, 3), reference, dtype=dtype).settle().ulp)


def test_bits_are_counted_in_the_candidates_dtype() -> None:
    reference = torch.arange(1.0, 9.0).reshape(2, 4)
    candidate = reference.bfloat16()
    candidate[1, 2] += 0.5
    found = difference(candidate, reference, dtype=torch.bfloat16, bits_against=reference + 1e-4).settle()
    assert found.bits == 1 / 8


def test_a_zero_of_the_other_sign_is_another_bit_pattern_and_no_error() -> None:
    found = difference(torch.tensor([[-0.0]]), torch.zeros(1, 1), dtype=torch.float32, bits_against=torch.zeros(1, 1))
    assert (found.settle().bits, found.settle().max_abs) == (1.0, 0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_finite_is_counted_and_hides_nothing(bad: float, dtype: torch.dtype) -> None:
    candidate, reference = _pair(dtype, 3, 8)
    candidate[1, 2] = bad
    candidate[2, 3] = reference[2, 3] + 7
    found = difference(candidate, reference, dtype=torch.float32).settle()
    assert found.non_finite == 1
    assert (found.token, found.channel) == (2, 3)
    assert found.max_abs == pytest.approx(7, rel=1e-2)
    assert all(math.isfinite(getattr(found, name)) for name in ("max_abs", "rms_rel", "cosine", "ulp", "row_rel"))


def test_the_same_infinity_and_nan_on_both_sides_are_no_fault() -> None:
    both = torch.tensor([[math.inf, -math.inf, math.nan, 1.0]])
    assert difference(both, both, dtype=torch.float32).settle().non_finite == 0
    assert difference(both[:, :1], -both[:, :1], dtype=torch.float32).settle().non_finite == 1
    assert difference(torch.ones(1, 1), both[:, :1], dtype=torch.float32).settle().non_finite == 1


def test_rows_that_do_not_count_leave_no_trace() -> None:
    candidate, reference = _pair(torch.float32, 2, 3, 8)
    valid = torch.tensor([[True, True, False], [False, True, True]])
    expected = difference(candidate[valid], reference[valid], dtype=torch.float32, bits_against=reference[valid])
    candidate[0, 2], candidate[1, 0] = math.nan, 1e30
    found = difference(candidate, reference, dtype=torch.float32, valid=valid, bits_against=reference).settle()
    for name in ("max_abs", "rms_rel", "cosine", "ulp", "bits", "row_rel", "rms", "scale", "elements", "non_finite"):
        assert getattr(found, name) == pytest.approx(getattr(expected.settle(), name)), name
    assert valid.reshape(-1)[found.token]


def test_no_row_at_all_is_no_difference() -> None:
    reference = torch.ones(1, 2, 4)
    none = difference(reference + 1, reference, dtype=torch.float32, valid=torch.zeros(1, 2)).settle()
    empty = difference(reference[:, :0], reference[:, :0], dtype=torch.float32).settle()
    for found in (none, empty):
        assert (found.max_abs, found.rms_rel, found.cosine, found.elements) == (0, 0, 1, 0)


def test_values_whose_squares_overflow_are_compared() -> None:
    reference = torch.tensor([[1e25, 1.0]])
    found = difference(reference * 1.5, reference, dtype=torch.float32).settle()
    assert found.rms_rel == pytest.approx(0.5)
    assert found.non_finite == 0


def test_a_large_token_does_not_hide_a_small_one() -> None:
    reference = torch.ones(10, 8)
    reference[0] = 1e4
    candidate = reference.clone()
    candidate[7] *= 1.1
    found = difference(candidate, reference, dtype=torch.float32).settle()
    assert found.rms_rel < 1e-4
    assert found.row_rel == pytest.approx(0.1, rel=1e-3)


def test_zero_against_something_is_all_error() -> None:
    found = difference(torch.full((1, 4), 1e-9), torch.zeros(1, 4), dtype=torch.float32).settle()
    assert (found.rms_rel, found.row_rel, found.cosine) == (1, 1, 0)


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    candidate, reference = _pair(torch.bfloat16, 50, 7)
    whole = difference(candidate, reference, dtype=torch.bfloat16, bits_against=reference).settle()
    monkeypatch.setattr(compare, "_BLOCK_CPU", 7)
    cut = difference(candidate, reference, dtype=torch.bfloat16, bits_against=reference).settle()
    for name in Difference.__struct_fields__:
        assert getattr(cut, name) == pytest.approx(getattr(whole, name), rel=1e-12), name


def test_any_strides_are_compared() -> None:
    candidate, reference = _pair(torch.bfloat16, 6, 10)
    plain = difference(candidate.t().contiguous(), reference.t().contiguous(), dtype=torch.bfloat16)
    turned = difference(candidate.t(), reference.t(), dtype=torch.bfloat16, bits_against=reference.t()).settle()
    assert turned.max_abs == plain.settle().max_abs
    spread = difference(reference[:1].expand(6, 10), reference, dtype=torch.float32).settle()
    assert spread.rms_rel > 0.5


def test_several_are_settled_at_once() -> None:
    pairs = [_pair(torch.bfloat16, 4, 8, seed=s) for s in range(3)]
    pending = [difference(c, r, dtype=torch.bfloat16) for c, r in pairs]
    assert settle(pending) == [p.settle() for p in pending]
    assert settle([]) == []


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[1, 2\] and \[2, 1\]"):
        difference(torch.ones(1, 2), torch.ones(2, 1), dtype=torch.float32)


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_what_a_device_does_says_what_the_processor_says(monkeypatch: pytest.MonkeyPatch, bad: float) -> None:
    """The way that asks nothing in between, taken on the processor."""
    candidate, reference = _pair(torch.bfloat16, 40, 64)
    candidate[3, 3] = bad
    valid = torch.arange(40) > 2
    asked: dict[str, Any] = {"dtype": torch.bfloat16, "valid": valid, "bits_against": reference}
    near = difference(candidate, reference, **asked).settle()
    monkeypatch.setattr(compare, "_answers_at_once", lambda x: False)
    far = difference(candidate, reference, **asked).settle()
    for name in Difference.__struct_fields__:
        assert getattr(far, name) == pytest.approx(getattr(near, name), rel=1e-5), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_device_says_what_the_processor_says() -> None:
    candidate, reference = _pair(torch.bfloat16, 40, 64)
    candidate[3, 3] = math.nan
    near = difference(candidate, reference, dtype=torch.bfloat16, bits_against=reference).settle()
    far = difference(candidate.cuda(), reference.cuda(), dtype=torch.bfloat16, bits_against=reference.cuda()).settle()
    for name in Difference.__struct_fields__:
        assert getattr(far, name) == pytest.approx(getattr(near, name), rel=1e-6), name
