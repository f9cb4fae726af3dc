"""Residual algebra: the laws hold on fixtures and on low-precision stacks, and a stack that breaks one is named."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import GraniteConfig, GraniteModel

from blockaudit.records.conformance import Law
from blockaudit.reference import algebra

NAMES = (
    "telescoping sum", "scaled-shortcut expansion", "ordered Jacobian product", "reversed Jacobian product differs",
    "singular-value bound", "energy identity",
)  # fmt: skip
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def _named(laws: tuple[Law, ...]) -> dict[str, Law]:
    return {law.name: law for law in laws}


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31), st.integers(2, 24), st.integers(2, 10))
def test_every_law_holds_in_double_precision(seed: int, width: int, depth: int) -> None:
    laws = algebra.check(seed, width, depth)
    assert tuple(law.name for law in laws) == NAMES
    assert all(law.holds for law in laws), laws
    by_name = _named(laws)
    for name in ("telescoping sum", "scaled-shortcut expansion", "energy identity"):
        assert by_name[name].error < 1e-12
        assert by_name[name].bound < 1e-11
    assert by_name["ordered Jacobian product"].error < 1e-13
    assert 0 < by_name["singular-value bound"].error <= 1


def test_the_same_seed_gives_the_same_numbers() -> None:
    assert algebra.check(3) == algebra.check(3)
    assert algebra.check(3) != algebra.check(4)


def test_the_order_of_the_product_is_no_small_matter() -> None:
    apart = [_named(algebra.check(seed))["reversed Jacobian product differs"].error for seed in range(20)]
    assert min(apart) > 0.1


def test_one_factor_has_no_order() -> None:
    with pytest.raises(ValueError, match="depth: one factor has no order"):
        algebra.check(depth=1)


Stack = tuple[list[torch.Tensor], list[algebra.Update]]


def _stack(
    dtype: torch.dtype, shortcut: list[algebra.Scale], branch: list[algebra.Scale], parallel: bool = False
) -> Stack:
    """A stack run in `dtype`, one rounding per operation, with a channel that spikes and a row that is zero."""
    generator = torch.Generator().manual_seed(0)

    def drawn() -> torch.Tensor:
        return torch.randn(2, 5, 16, generator=generator).to(dtype)

    states, updates = [drawn()], list[algebra.Update]()
    states[0][..., 3] *= 100
    states[0][0, 0] = 0
    for a, b in zip(shortcut, branch, strict=True):
        us = [drawn() for _ in range(2 if parallel else 1)]
        terms = [u if algebra._is_one(b) else (u * b).to(dtype) for u in us]
        kept = states[-1] if algebra._is_one(a) else (states[-1] * a).to(dtype)
        states.append(sum(terms[1:], terms[0]) + kept)
        updates.append(us if parallel else us[0])
    return states, updates


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("kind", ["identity", "scaled", "vector"])
def test_laws_hold_within_the_rounding_of_the_dtype(kind: str, parallel: bool, dtype: torch.dtype) -> None:
    a: list[algebra.Scale] = [1.0 if kind == "identity" else 0.875] * 24
    b: list[algebra.Scale] = [1.0 if kind == "identity" else 0.22] * 24
    if kind == "vector":
        b = [torch.linspace(-0.5, 1.5, 16).to(dtype)] * 24
    states, updates = _stack(dtype, a, b, parallel)
    laws = algebra.on_stack(states, updates, a, b)
    assert all(law.holds for law in laws), laws
    assert [law.name for law in laws] == ([NAMES[0]] if kind == "identity" else []) + [NAMES[1], NAMES[5]]
    for law in laws:
        assert law.error <= law.bound < 100 * torch.finfo(dtype).eps * 24


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_update_that_was_not_added_is_named(dtype: torch.dtype) -> None:
    ones: list[algebra.Scale] = [1.0] * 24
    states, updates = _stack(dtype, ones, ones)
    updates[7] = torch.zeros_like(states[0])
    laws = _named(algebra.on_stack(states, updates, ones, ones))
    for name in ("telescoping sum", "scaled-shortcut expansion"):
        assert not laws[name].holds
        assert "worst over add 7 of 24 alone" in laws[name].says


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_wrong_factor_breaks_the_expansion_and_the_energy(dtype: torch.dtype) -> None:
    ones: list[algebra.Scale] = [1.0] * 6
    scaled: list[algebra.Scale] = [1.0, 1.0, 0.5, 1.0, 1.0, 1.0]
    states, updates = _stack(dtype, ones, scaled)
    assert all(law.holds for law in algebra.on_stack(states, updates, ones, scaled))
    laws = algebra.on_stack(states, updates, ones, ones)
    assert not any(law.holds for law in laws)
    assert "add 2" in laws[0].says
    assert "add 2" in laws[-1].says


def test_a_norm_between_adds_is_no_residual_sum() -> None:
    ones: list[algebra.Scale] = [1.0] * 2
    states, updates = _stack(torch.float32, ones, ones)
    sums = states[1:]
    normed = [states[0], torch.nn.functional.layer_norm(states[1], (16,))]
    assert not algebra.on_stack([*normed, states[2]], updates, ones, ones)[0].holds
    again = [sums[0], normed[1] + updates[1]]
    assert algebra.energy(normed, updates, again).holds


def test_the_energy_of_known_rows() -> None:
    x = torch.tensor([[3.0, 4.0], [1.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    u = torch.tensor([[3.0, 4.0], [0.0, 2.0], [-2.0, 0.0]], dtype=torch.float64)
    law = algebra.energy([x], [u], [x + u])
    assert law.holds
    assert law.error <= law.bound
    wrong = algebra.energy([x], [u], [x + 2 * u])
    assert not wrong.holds
    # The second row: 17 found, 5 expected.
    assert wrong.error == pytest.approx(12)


def test_nothing_to_look_at_is_said() -> None:
    zero = torch.zeros(2, 3)
    law = algebra.energy([zero], [zero], [zero])
    assert law.holds
    assert "no row to look at" in law.says


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_holds_no_law(value: float) -> None:
    ones: list[algebra.Scale] = [1.0] * 3
    states, updates = _stack(torch.float32, ones, ones)
    states[2][0, 1, 4] = value
    for law in algebra.on_stack(states, updates, ones, ones):
        assert not law.holds
        assert "not finite" in law.says


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("factor", [1.0, 0.22])
def test_laws_hold_on_the_values_of_a_real_model(factor: float, dtype: torch.dtype) -> None:
    """Granite multiplies each branch by `residual_multiplier` before the add; with 1 it is LLaMA."""
    size = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 6}
    torch.manual_seed(0)
    config = GraniteConfig(**size, vocab_size=40, residual_multiplier=factor, initializer_range=0.3)
    model = GraniteModel(config).to(dtype).eval()
    states, updates = list[torch.Tensor](), list[algebra.Update]()

    def entered(_: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        states.append(given[0])

    def left(_: nn.Module, __: object, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        updates.append(output if isinstance(output, torch.Tensor) else output[0])

    for layer in model.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.register_forward_pre_hook(entered)
        for branch in (layer.self_attn, layer.mlp):
            branch.register_forward_hook(left)
    model.norm.register_forward_pre_hook(entered)
    with torch.no_grad():
        model(torch.arange(14).reshape(2, 7))
    ones: list[algebra.Scale] = [1.0] * 12
    scales: list[algebra.Scale] = [factor] * 12
    laws = algebra.on_stack(states, updates, ones, scales)
    assert len(laws) == (3 if factor == 1 else 2)
    assert all(law.holds for law in laws), laws
    wrong = algebra.on_stack(states, updates, ones, [*scales[:5], 2 * factor, *scales[6:]])
    assert not any(law.holds for law in wrong)
    assert all("add 5" in law.says for law in wrong)
