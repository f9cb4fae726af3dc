from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from blockaudit.trace.identify import (
    Solved,
    identify_dropout,
    identify_residual,
    identify_scale,
    identify_softcap,
)
from tests.trace.simulated_norms import norm

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def drawn(seed: int, dtype: torch.dtype, scale: float = 1.0, n: int = 64, width: int = 48) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(n, width, generator=generator, dtype=torch.float64)).to(dtype)


def values(solved: list[Solved]) -> dict[str, Any]:
    return {s.field: s.value for s in solved}


def intervals(solved: list[Solved]) -> dict[str, Any]:
    return {s.field: s.interval for s in solved}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (2.0, 1.0), (0.0, 1.0), (1.0, 0.0), (1.0, 0.22), (0.5, 2.0)])
def test_coefficients(dtype: torch.dtype, a: float, b: float) -> None:
    x, u = drawn(1, dtype), drawn(2, dtype, 0.3)
    found = identify_residual(x, {"attention": u}, a * x + b * u, dtype=dtype)
    assert values(found)["shortcut.scale"] == a
    assert values(found)["attention.scale"] == pytest.approx(b, rel=3e-3)
    low, high = intervals(found)["attention.scale"]
    assert low <= b <= high
    assert values(found)["placement"] == "none"
    assert values(found)["dropout"] == (0.0 if b else None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_two_updates_of_a_parallel_block(dtype: torch.dtype) -> None:
    x, u, v = drawn(1, dtype), drawn(2, dtype), drawn(3, dtype, 0.1)
    found = values(identify_residual(x, {"attention": u, "mlp": v}, x + u + 2 * v, dtype=dtype))
    assert (found["shortcut.scale"], found["attention.scale"], found["mlp.scale"]) == (1.0, 1.0, 2.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_number_per_channel(dtype: torch.dtype) -> None:
    x, u = drawn(1, dtype), drawn(2, dtype)
    gamma = drawn(5, dtype, 0.1, 1)[0]
    found = identify_residual(x, {"mlp": u}, x + gamma * u, dtype=dtype)
    assert values(found)["shortcut.scale"] == 1.0
    assert values(found)["mlp.scale"] == pytest.approx(gamma.double().tolist(), abs=1e-2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_the_shortcut_carries(dtype: torch.dtype) -> None:
    x, u = drawn(1, dtype, 3.0), drawn(2, dtype)
    n = norm(x, drawn(9, dtype, 0.2, 1)[0] + 1, None, family="rmsnorm", epsilon=1e-6)
    assert values(identify_residual(x, {"mlp": u}, n + u, dtype=dtype, normalised=n))["shortcut.source"] == "normalised"
    assert values(identify_residual(x, {"mlp": u}, x + u, dtype=dtype, normalised=n))["shortcut.source"] == "state"
    assert values(identify_residual(x, {"mlp": u}, u.clone(), dtype=dtype, normalised=n))["shortcut.source"] is None
    assert values(identify_residual(x, {"mlp": u}, x + u, dtype=dtype))["shortcut.source"] is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_norm_behind_the_add(dtype: torch.dtype) -> None:
    x, u, w = drawn(1, dtype), drawn(2, dtype), drawn(9, dtype, 0.2, 1)[0] + 1
    total = norm(x + u, w, None, family="layernorm", epsilon=1e-5)
    found = values(identify_residual(x, {"mlp": u}, total, dtype=dtype, weight=w))
    assert found["placement"] == "post_add"
    assert found["shortcut.scale"] is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_active_dropout(dtype: torch.dtype, p: float) -> None:
    torch.manual_seed(3)
    x, u = drawn(1, dtype), drawn(2, dtype)
    dropped = torch.nn.functional.dropout(u, p, training=True)
    for found in (
        identify_dropout(u, dropped, dtype=dtype),
        next(s for s in identify_residual(x, {"mlp": u}, x + dropped, dtype=dtype) if s.field == "dropout"),
    ):
        assert found.value == pytest.approx(p, rel=0.02)
        assert found.interval is not None
        assert found.interval[0] <= p <= found.interval[1]
    assert identify_dropout(u, u, dtype=dtype).value == 0.0


def test_an_update_below_the_rounding_says_nothing_of_dropout() -> None:
    dtype = torch.bfloat16
    x, u = drawn(1, dtype), drawn(2, dtype, 1e-5)
    assert values(identify_residual(x, {"mlp": u}, x + u, dtype=dtype))["dropout"] is None
    assert identify_dropout(u[:1], u[:1], dtype=dtype).value is None  # 48 elements


def test_what_a_sum_cannot_tell() -> None:
    dtype = torch.float32
    x = drawn(1, dtype)
    found = {s.field: s for s in identify_residual(x, {"mlp": 2 * x}, 3 * x, dtype=dtype)}
    assert found["shortcut.scale"].value is None
    assert "collinear" in found["mlp.scale"].evidence
    found = {s.field: s for s in identify_residual(x, {"mlp": 0 * x}, x, dtype=dtype)}
    assert found["shortcut.scale"].value == 1.0
    assert "zero" in found["mlp.scale"].evidence
    found = {s.field: s for s in identify_residual(x, {"mlp": drawn(2, dtype)}, drawn(3, dtype), dtype=dtype)}
    assert {s.value for s in found.values()} == {None}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", [1.0, 12.0, 0.0883883476, -1.0, 48**0.5])
def test_a_multiplier(dtype: torch.dtype, k: float) -> None:
    a = drawn(1, dtype)
    found = identify_scale(a, a * k, dtype=dtype, candidates=(k,))
    assert found.value == k
    assert found.interval is not None
    assert found.interval[0] <= k <= found.interval[1]
    assert found.interval[1] - found.interval[0] <= 0.01 * abs(k)
    assert identify_scale(a, drawn(2, dtype), dtype=dtype).value is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_softcap(dtype: torch.dtype) -> None:
    raw = drawn(1, dtype, 40.0)
    found = identify_softcap(raw, 30 * torch.tanh(raw / 30), dtype=dtype)
    assert found.value == 30
    assert identify_softcap(raw, raw, dtype=dtype).value == 0.0
    # Logits far below the cap say nothing about it.
    small = drawn(1, torch.bfloat16, 0.01)
    assert identify_softcap(small, 30 * torch.tanh(small / 30), dtype=torch.bfloat16).value is None
