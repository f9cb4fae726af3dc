from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from blockaudit.records.norm_spec import NormSpec
from blockaudit.trace.identify import Solved, identify_final, identify_norm, which_matrix, which_weight
from tests.trace.simulated_norms import norm, random_case

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
LLAMA = NormSpec("rmsnorm", 1e-6, cast_order="cast_before_scale")
GRID = (0.0, 1e-12, 3.3e-9, 1e-8, 1e-7, 1e-6, 2e-6, 1e-5, 4.7e-5, 1e-4, 1e-3, 1e-2, 1e-1)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(n: int, width: int, dtype: torch.dtype, scale: float = 1.0, seed: int = 0) -> Tensor:
    """Rows whose sizes differ by a factor of ten."""
    size = scale * torch.logspace(-0.5, 0.5, n, dtype=FP64)[:, None]
    return (size * torch.randn(n, width, generator=seeded(seed), dtype=FP64)).to(dtype)


def vector(width: int, dtype: torch.dtype, around: float = 1.0, seed: int = 7) -> Tensor:
    return (around + 0.2 * torch.randn(width, generator=seeded(seed))).to(dtype)


def by_field(solved: list[Solved]) -> dict[str, Solved]:
    return {s.field: s for s in solved}


def values(solved: list[Solved]) -> dict[str, Any]:
    return {s.field: s.value for s in solved}


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32, FP64], ids=str)
@pytest.mark.parametrize("epsilon", [1e-6, 1e-5])
def test_a_llama_norm_at_unit_scale(dtype: torch.dtype, epsilon: float) -> None:
    x, w = torch.randn(512, 256, generator=seeded(), dtype=FP64).to(dtype), vector(256, dtype)
    y = norm(x, w, None, family="rmsnorm", epsilon=epsilon)
    found = by_field(identify_norm(x, y, w, dtype=dtype, declared=LLAMA))
    assert (found["family"].value, found["scale_offset"].value, found["center"].value) == ("rmsnorm", 0.0, False)
    # Rows of one size may not tell inside from outside: then epsilon is unknown, and known under the declared formula.
    assert found["epsilon"].value in (None, epsilon)
    assert found["epsilon"].interval is not None
    assert found["epsilon"].interval[0] <= epsilon <= found["epsilon"].interval[1]
    assert found["epsilon"].if_declared is not None
    assert found["epsilon"].if_declared[0] in (None, epsilon)
    assert found["epsilon"].proposals == (epsilon,)
    if dtype in (BF16, FP16):
        assert (found["work_dtype"].value, found["cast_order"].value) == ("float32", "cast_before_scale")


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32, FP64], ids=str)
def test_small_rows_decide_everything(dtype: torch.dtype) -> None:
    x, w = rows(64, 128, dtype, 0.01), vector(128, dtype, 0.0)
    y = norm(x, w, None, family="rmsnorm", epsilon=1e-5, offset=1.0, before=False)
    found = values(identify_norm(x, y, w, dtype=dtype))
    assert found["epsilon"] == 1e-5
    assert found["epsilon_location"] == "inside"
    assert found["scale_offset"] == 1.0
    assert found["cast_order"] == ("cast_after_scale" if dtype in (BF16, FP16) else None)


@pytest.mark.parametrize(("width", "epsilon"), [*((64, e) for e in GRID), (100, 1e-6), (2048, 1e-6), (2048, 0.0)])
@pytest.mark.parametrize(("dtype", "relative"), [(BF16, 1e-2), (FP32, 1e-5)], ids=str)
def test_asking_gives_any_epsilon(dtype: torch.dtype, relative: float, epsilon: float, width: int) -> None:
    w, x = vector(width, dtype), rows(2, width, dtype)

    def ask(v: Tensor) -> Tensor:
        return norm(v, w, None, family="rmsnorm", epsilon=epsilon)

    found = by_field(identify_norm(x, ask(x), w, dtype=dtype, ask=ask))["epsilon"]
    assert found.interval is not None
    low, high = found.interval
    assert low <= epsilon <= high
    assert high - low <= relative * epsilon + 1e-15
    assert found.value == pytest.approx(epsilon, rel=relative, abs=1e-15)


FORMULAS: list[dict[str, Any]] = [
    {"family": "rmsnorm", "epsilon": 1e-5},
    {"family": "rmsnorm", "epsilon": 1e-3, "outside": True},
    {"family": "scalenorm", "epsilon": 1e-5},
    {"family": "layernorm", "epsilon": 1e-5},
    {"family": "layernorm", "epsilon": 1e-5, "correction": 1},
    {"family": "layernorm", "epsilon": 1e-3, "outside": True},
    {"family": "layernorm", "epsilon": 1e-6, "outside": True, "correction": 1},
]


@pytest.mark.parametrize("formula", FORMULAS, ids=str)
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_asking_tells_every_formula_apart(dtype: torch.dtype, formula: dict[str, Any]) -> None:
    w = vector(1 if formula["family"] == "scalenorm" else 64, dtype)
    bias = vector(64, dtype, 0.0, 8) if formula["family"] == "layernorm" else None

    def ask(v: Tensor) -> Tensor:
        return norm(v, w, bias, before=False, **formula)

    x = rows(4, 64, dtype)
    found = values(identify_norm(x, ask(x), w, bias, dtype=dtype, ask=ask))
    std = formula.get("outside") and formula.get("correction")
    assert found["family"] == ("layernorm_std_eps" if std else formula["family"])
    assert found["epsilon"] == formula["epsilon"]
    assert found["epsilon_location"] == ("outside" if formula.get("outside") else "inside")
    assert found["variance_correction"] == formula.get("correction", 0)
    assert found["bias"] == (bias is not None)


def test_moments_in_bfloat16_are_named() -> None:
    x, w = rows(32, 128, BF16), vector(128, BF16)
    y = norm(x, w, None, family="rmsnorm", epsilon=1e-5, work=BF16)
    assert values(identify_norm(x, y, w, dtype=BF16))["work_dtype"] == "bfloat16"
    asked = identify_norm(x, y, w, dtype=BF16, declared=NormSpec("rmsnorm", 1e-5, work_dtype="input"))
    assert values(asked)["work_dtype"] == "input"


def test_gain_lost_and_gain_added_twice() -> None:
    x, w = rows(16, 64, FP32), vector(64, FP32, 0.0)
    for offset in (0.0, 2.0):
        y = norm(x, w, None, family="rmsnorm", epsilon=1e-6, offset=offset)
        assert values(identify_norm(x, y, w, dtype=FP32))["scale_offset"] == offset
    bare = norm(x, None, None, family="rmsnorm", epsilon=1e-6)
    found = by_field(identify_norm(x, bare, w, dtype=FP32))
    assert (found["scale"].value, found["scale_offset"].value) == ("none", None)


def test_a_bias_that_is_lost() -> None:
    x, w, b = rows(16, 64, FP32), vector(64, FP32), vector(64, FP32, 0.0, 3)
    y = norm(x, w, None, family="layernorm", epsilon=1e-5)
    assert values(identify_norm(x, y, w, b, dtype=FP32))["bias"] is False


def test_what_rows_cannot_tell_is_unknown() -> None:
    ones, x = torch.ones(64, dtype=BF16), rows(16, 64, BF16)
    found = by_field(identify_norm(x, norm(x, ones, None, family="rmsnorm", epsilon=1e-5), ones, dtype=BF16))
    assert found["cast_order"].value is None  # times one, before or after, is the same
    assert found["scale"].value is None
    assert found["scale_offset"].value == 0.0
    one = rows(1, 64, BF16)
    found = by_field(identify_norm(one, norm(one, ones, None, family="rmsnorm", epsilon=1e-3), ones, dtype=BF16))
    assert found["epsilon"].value is None
    assert found["epsilon_location"].value is None
    assert "outside" in found["epsilon_location"].evidence
    found = by_field(identify_norm(x, norm(x, None, None, family="rmsnorm", epsilon=1e-5), dtype=BF16))
    assert found["scale_offset"].value is None


def test_no_formula_and_no_rows() -> None:
    x = rows(16, 64, FP32)
    for y in (x.roll(1, 0), x.abs().sqrt(), torch.full_like(x, torch.nan)):
        found = identify_norm(x, y, vector(64, FP32), dtype=FP32)
        assert {s.value for s in found} == {None}
        assert all(s.evidence and s.interval is None for s in found)


def test_captured_rows_of_another_norm_are_said() -> None:
    x, w = rows(16, 64, FP32), vector(64, FP32)

    def ask(v: Tensor) -> Tensor:
        return norm(v, w, None, family="rmsnorm", epsilon=1e-6)

    found = identify_norm(x, norm(x, w, None, family="rmsnorm", epsilon=1e-2), w, dtype=FP32, ask=ask)
    assert {s.value for s in found} == {None}
    assert "asked" in found[0].evidence


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_no_norm_and_dynamic_tanh(dtype: torch.dtype) -> None:
    x, w, b = rows(16, 64, dtype), vector(64, dtype), vector(64, dtype, 0.0, 3)
    assert values(identify_norm(x, x.clone(), dtype=dtype))["family"] == "none"
    assert values(identify_norm(x, w * x, w, dtype=dtype))["family"] == "none"
    found = by_field(identify_norm(x, torch.tanh(0.5 * x) * w + b, w, b, dtype=dtype))
    assert found["family"].value == "dyt"
    assert found["epsilon"].value is None
    assert found["alpha"].interval is not None
    assert found["alpha"].interval[0] <= 0.5 <= found["alpha"].interval[1]


def test_the_bits_of_the_fused_operators() -> None:
    x, w, b = rows(64, 128, BF16), vector(128, BF16), vector(128, BF16, 0.0, 3)
    found = values(identify_norm(x, torch.nn.functional.layer_norm(x, (128,), w, b, 1e-5), w, b, dtype=BF16))
    assert (found["family"], found["bias"], found["cast_order"]) == ("layernorm", True, "cast_after_scale")
    found = values(identify_norm(x, torch.nn.functional.rms_norm(x, (128,), w, 1e-5), w, dtype=BF16))
    assert (found["family"], found["work_dtype"], found["cast_order"]) == ("rmsnorm", "float32", "cast_after_scale")


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_which_vector_and_which_matrix(dtype: torch.dtype) -> None:
    x = rows(16, 64, dtype)
    weights = {f"layers.{i}": vector(64, dtype, seed=i) for i in range(4)} | {"twin": vector(64, dtype, seed=3)}
    spec = NormSpec("rmsnorm", 1e-6, cast_order="cast_before_scale")

    def of(name: str) -> str | None:
        return which_weight(x, norm(x, weights[name], None, family="rmsnorm", epsilon=1e-6), spec, weights, dtype=dtype)

    assert of("layers.1") == "layers.1"
    assert of("layers.3") is None  # its twin fits as well
    matrices = {f"layers.{i}": torch.randn(48, 64, generator=seeded(i)).to(dtype) for i in range(4)}
    assert which_matrix(x, x @ matrices["layers.2"].T, matrices, dtype=dtype) == "layers.2"
    assert which_matrix(x, x.roll(1) @ matrices["layers.2"].T, matrices, dtype=dtype) is None


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_final_norm_left_out_once_and_twice(dtype: torch.dtype) -> None:
    x, w = rows(16, 64, dtype), vector(64, dtype)
    spec = NormSpec("rmsnorm", 1e-6, cast_order="cast_before_scale")

    def run(v: Tensor) -> Tensor:
        return norm(v, w, None, family="rmsnorm", epsilon=1e-6)

    made: list[Callable[[], Tensor]] = [lambda: x, lambda: run(x), lambda: run(run(x))]
    assert [identify_final(x, y(), spec, w, dtype=dtype).value for y in made] == [0, 1, 2]
    ones = torch.ones(64, dtype=dtype)
    once = norm(x, ones, None, family="rmsnorm", epsilon=1e-6)
    assert identify_final(x, once, spec, ones, dtype=dtype).value is None  # the second norm changes nothing


@pytest.mark.parametrize("seed", range(24))
def test_a_drawn_norm_is_never_named_wrongly(seed: int) -> None:
    rng = random.Random(seed)
    dtype = rng.choice([BF16, FP16, FP32, FP64])
    case = random_case(rng, 64, dtype)
    x = rows(rng.choice([1, 8, 64]), 64, dtype, rng.choice([1.0, 0.01]), seed)
    found = by_field(identify_norm(x, case.run(x), case.weight, case.bias, dtype=dtype))
    low, high = found["epsilon"].interval or (0.0, torch.inf)
    assert low <= case.truth["epsilon"] <= high  # type: ignore[operator]
    for field, truth in case.truth.items():
        assert found[field].value in (None, truth) or field == "epsilon", field
