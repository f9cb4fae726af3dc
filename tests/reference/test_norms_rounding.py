"""Released numerics of a norm, bit for bit against the classes that release them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

from blockaudit.records.norm_spec import NormSpec
from blockaudit.reference import norms

RMS, LAYER = NormSpec("rmsnorm", 1e-5), NormSpec("layernorm", 1e-5, center=True)
BEFORE, AFTER = replace(RMS, cast_order="cast_before_scale"), replace(RMS, cast_order="cast_after_scale")
CLASSES: dict[str, tuple[Callable[..., Any], NormSpec]] = {
    "llama": (LlamaRMSNorm, BEFORE),
    "t5": (T5LayerNorm, BEFORE),
    "gemma2": (Gemma2RMSNorm, replace(AFTER, scale_offset=1.0)),
    "olmo2": (Olmo2RMSNorm, AFTER),
    "cohere": (CohereLayerNorm, replace(LAYER, cast_order="cast_after_scale")),
    "nemotron": (NemotronLayerNorm1P, replace(LAYER, scale_offset=1.0, bias=True)),
    "LayerNorm": (nn.LayerNorm, replace(LAYER, bias=True)),
    "RMSNorm": (nn.RMSNorm, RMS),
}
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def _rows(width: int, dtype: torch.dtype) -> torch.Tensor:
    """64 rows of each kind: ordinary, tiny variance, shifted, one channel that spikes, constant, zero."""
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(6, 64, width, generator=generator)
    x[1] *= 1e-3
    x[2] = x[2] * 0.1 + 30
    x[3, :, 0] += 200
    x[4] = x[4, :, :1]
    x[5] = 0
    return x.to(dtype)


def _module(name: str, width: int, dtype: torch.dtype) -> tuple[Any, NormSpec, torch.Tensor, torch.Tensor | None]:
    make, spec = CLASSES[name]
    module = make(width, eps=1e-5).to(dtype)
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator).to(dtype)
    return module, spec, module.weight.data, module.bias.data if spec.bias else None


def _bits(a: torch.Tensor, b: torch.Tensor) -> float:
    """Fraction of elements that are not the same number."""
    assert a.dtype == b.dtype
    return (a != b).double().mean().item()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [7, 64, 768])
@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_released_class_is_reproduced_to_the_bit(name: str, width: int, dtype: torch.dtype) -> None:
    module, spec, weight, bias = _module(name, width, dtype)
    x = _rows(width, dtype)
    with torch.no_grad():
        assert _bits(module(x), norms.released(spec, x, weight, bias)) == 0.0


@pytest.mark.parametrize("name", ["nemotron", "LayerNorm", "RMSNorm"])
@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 5e-4), (torch.float16, 2e-3)], ids=str)
def test_our_own_spelling_of_a_fused_operator_is_all_but_exact(name: str, dtype: torch.dtype, most: float) -> None:
    module, spec, weight, bias = _module(name, 768, dtype)
    x = torch.randn(512, 768, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.no_grad():
        expected = module(x)
    for other in norms.variants(spec, x, weight, bias):
        assert _bits(expected, other) <= most


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_heads_with_their_own_weights_are_reproduced_to_the_bit(dtype: torch.dtype) -> None:
    module = CohereLayerNorm((4, 16), eps=1e-5).to(dtype)
    module.weight.data = torch.randn(4, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    x = _rows(16, dtype).reshape(6, 16, 4, 16)
    spec = replace(LAYER, scale="per_head", cast_order="cast_after_scale")
    with torch.no_grad():
        assert _bits(module(x), norms.released(spec, x, module.weight)) == 0.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_olmo_widens_before_the_fused_operator(dtype: torch.dtype) -> None:
    """The operator on float32, then one cast: all but the operator on the narrow row (exact in float32)."""
    x = _rows(768, dtype)[0]
    different = _bits(OlmoLayerNorm(768)(x), norms.released(replace(LAYER, scale="none"), x))
    assert different == 0.0 if dtype == torch.float32 else different < 1e-3


def test_a_wider_weight_widens_the_result_as_in_the_release() -> None:
    module, spec, weight, _ = _module("llama", 64, torch.float32)
    x = _rows(64, torch.bfloat16)
    with torch.no_grad():
        assert _bits(module(x), norms.released(spec, x, weight)) == 0.0
    x, bias = x[0], torch.ones(64)  # a constant row is round-off in either spelling
    mixed = norms.released(replace(LAYER, bias=True), x, weight, bias)
    with torch.no_grad():
        assert _bits(mixed, torch.nn.functional.layer_norm(x, (64,), weight, bias, 1e-5)) < 1e-3


@pytest.mark.parametrize("work", ["input", "bfloat16"])
def test_moments_in_the_low_dtype_round_at_every_step(work: str) -> None:
    x, weight = _rows(64, torch.bfloat16), torch.rand(64).to(torch.bfloat16)
    spelled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight
    assert _bits(spelled, norms.released(replace(RMS, work_dtype=work), x, weight)) == 0.0


def test_bits_tell_what_errors_do_not() -> None:
    """Moments in bfloat16, and the cast on the other side, move far more bits than any spelling of the same norm."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, 768, generator=generator).to(torch.bfloat16)
    weight = torch.randn(768, generator=generator).to(torch.bfloat16)
    right = norms.variants(BEFORE, x, weight)
    noise = max(_bits(right[0], other) for other in right)
    assert noise < 1e-4
    assert _bits(right[0], norms.released(AFTER, x, weight)) > 0.15
    low = norms.released(replace(BEFORE, work_dtype="bfloat16"), x, weight)
    assert 0.15 < _bits(right[0], low) < 0.5
    assert _bits(right[0], norms.released(replace(BEFORE, epsilon=1e-2), x, weight)) > 0.15


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(CLASSES))
def test_variants_begin_with_the_release_and_stay_close(name: str, dtype: torch.dtype) -> None:
    _, spec, weight, bias = _module(name, 768, dtype)
    x = torch.randn(64, 768, generator=torch.Generator().manual_seed(0)).to(dtype)
    made = norms.variants(spec, x, weight, bias)
    assert made[0].equal(norms.released(spec, x, weight, bias))
    assert len(made) == (5 if spec.family == "layernorm" else 4)
    exact = norms.apply(spec, x.double(), weight.double(), None if bias is None else bias.double())
    for other in made:
        assert other.dtype == dtype
        rounding = 6 * torch.finfo(dtype).eps
        torch.testing.assert_close(other.double(), exact, rtol=rounding, atol=rounding)


def test_one_pass_loses_shifted_rows_and_can_be_left_out() -> None:
    x = torch.randn(64, 768, generator=torch.Generator().manual_seed(0)) * 0.01 + 30
    two = norms.variants(LAYER, x, one_pass=False)
    assert len(two) == 4
    torch.testing.assert_close(two[1], two[2], rtol=1e-4, atol=1e-4)
    one = norms.variants(LAYER, x)[-1]
    assert one.isfinite().all()
    assert (one - two[0]).abs().max() > 0.05


@pytest.mark.parametrize(
    ("spec", "state"),
    [
        (NormSpec("scalenorm", 1e-5, scale="scalar"), {}),
        (NormSpec("prmsnorm", 1e-5, subset=16, scale="none"), {}),
        (NormSpec("groupnorm", 1e-5, groups=4, scale="none"), {}),
        (NormSpec("batchnorm", 1e-5, axes=(0,), scale="none"), {}),
        (NormSpec("layernorm_std_eps", 1e-6, "outside", 1, scale="none"), {}),
        (NormSpec("qknorm", 1e-5, scale="none"), {}),
        (NormSpec("dyt", work_dtype="input", scale="none"), {"alpha": torch.tensor([0.5])}),
        (NormSpec("none", scale="none"), {}),
    ],
    ids=lambda value: getattr(value, "family", ""),
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_family_is_the_exact_one_rounded(
    spec: NormSpec, state: dict[str, torch.Tensor], dtype: torch.dtype
) -> None:
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    exact = norms.apply(spec, x.double(), state=state)
    for made in norms.variants(spec, x, state=state):
        assert made.dtype == dtype
        torch.testing.assert_close(made.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-3 * exact.std())


def test_an_unknown_work_dtype_is_said() -> None:
    with pytest.raises(norms.NormError, match="work_dtype: expected one of input, float64"):
        norms.released(replace(RMS, work_dtype="float8"), _rows(8, torch.bfloat16))
