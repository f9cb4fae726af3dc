"""Update geometry: the specification's ratios by hand, quantiles as numpy has them, and values that are not finite."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockaudit.records.conformance import Quantiles
from blockaudit.trace import telemetry


def _numbers(found: Quantiles) -> tuple[float, float, float, float]:
    return found.p05, found.p50, found.p95, found.max


def test_one_token_by_hand() -> None:
    x, u = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 10.0]])
    told = telemetry.update("layers.0.mlp.sum", x, u, x + u)
    assert told.site == "layers.0.mlp.sum"
    assert _numbers(told.rho) == pytest.approx((2.0,) * 4, rel=1e-8)
    assert _numbers(told.cosine) == pytest.approx((0.8,) * 4, rel=1e-8)
    assert _numbers(told.growth) == pytest.approx((math.sqrt(205) / 5,) * 4, rel=1e-12)


def test_delta_stands_in_both_denominators() -> None:
    x, u = torch.full((1, 4), 1e-3), torch.full((1, 4), 2e-3)
    told = telemetry.update("s", x, u, x + u, delta=1e-3)
    assert told.rho.p50 == pytest.approx(2e-3 / 2e-3)
    assert told.cosine.p50 == pytest.approx(8e-6 / (8e-6 + 1e-3))
    assert told.growth.p50 == pytest.approx(3.0)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_quantiles_are_linear_between_neighbours(values: list[float]) -> None:
    found = _numbers(telemetry.quantiles(torch.tensor(values, dtype=torch.float64)))
    assert found == pytest.approx(tuple(numpy.quantile(values, (0.05, 0.5, 0.95, 1.0))), rel=1e-9, abs=1e-9)
    assert found[3] == max(values)


def test_padding_does_not_count() -> None:
    generator = torch.Generator().manual_seed(0)
    x, u = torch.randn(2, 2, 6, 8, generator=generator)
    valid = torch.tensor([[True] * 6, [True] * 3 + [False] * 3])
    kept = telemetry.update("s", x[valid], u[valid], (x + u)[valid])
    x[~valid], u[~valid] = 0.0, 1e30
    assert telemetry.update("s", x, u, x + u, valid) == kept


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sums_do_not_overflow_or_lose_digits(dtype: torch.dtype) -> None:
    x = torch.full((3, 4096), 200.0, dtype=dtype)
    told = telemetry.update("s", x, x / 2, x * 1.5)
    assert told.rho.p50 == pytest.approx(0.5, rel=1e-9)
    assert told.cosine.p50 == pytest.approx(1.0, rel=1e-9)
    assert told.growth.p50 == pytest.approx(1.5, rel=1e-9)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_broken_token_is_left_out(value: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x, u = torch.randn(2, 6, 8, generator=generator)
    kept = telemetry.update("s", x[1:], u[1:], (x + u)[1:])
    u[0, 3] = value
    assert telemetry.update("s", x, u, x + u) == kept


def test_a_zero_state_has_no_growth() -> None:
    x, u = torch.zeros(3, 4), torch.ones(3, 4)
    told = telemetry.update("s", x, u, u)
    assert told.rho.p50 == pytest.approx(1e8)
    assert told.cosine.p50 == 0.0
    assert math.isnan(told.growth.p50)
    x[0] = 2
    assert telemetry.update("s", x, u, x + u).growth.max == pytest.approx(1.5)


def test_no_token_gives_no_number() -> None:
    x = torch.ones(2, 3, 4)
    told = telemetry.update("s", x, x, x, torch.zeros(2, 3, dtype=torch.bool))
    for found in (told.rho, told.cosine, told.growth):
        assert all(math.isnan(number) for number in _numbers(found))


def test_growth_of_a_stack_needs_one_number_per_token() -> None:
    generator = torch.Generator().manual_seed(0)
    first, valid = torch.randn(2, 3, 8, generator=generator), torch.tensor([[True, True, False], [True, False, True]])
    last = first * torch.tensor([[1.0, 2.0, 99.0], [3.0, 99.0, 4.0]])[..., None]
    first[1, 2] = 0
    found = telemetry.stack_growth(telemetry.rms(first), telemetry.rms(last), valid)
    assert _numbers(found) == pytest.approx((1.1, 2.0, 2.9, 3.0), rel=1e-6)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31), st.floats(1e-3, 1e3))
def test_the_energy_identity_ties_the_three_together(seed: int, gain: float) -> None:
    x, u = torch.randn(2, 1, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    u = u * gain
    told = telemetry.update("s", x, u, x + u, delta=0.0)
    rho, c, growth = told.rho.p50, told.cosine.p50, told.growth.p50
    assert growth**2 == pytest.approx(1 + rho**2 + 2 * rho * c, rel=1e-9, abs=1e-12)
    assert -1 - 1e-12 <= c <= 1 + 1e-12
