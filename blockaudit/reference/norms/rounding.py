"""A norm as the declared numerics run it in a low dtype, every rounding where the release rounds.

Three orders of rounding: `cast_before_scale` (transformers 5.24.0: models/llama/modeling_llama.py), `cast_after_scale`
(models/gemma2/modeling_gemma2.py) and `none`, one fused operator that rounds once at its end (torch 2.13:
torch.nn.functional.layer_norm and rms_norm, which is what is called wherever it computes the spec).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from blockaudit.records.norm_spec import NormSpec
from blockaudit.reference.norms.formulas import NormError, State, normalised
from blockaudit.reference.norms.spelling import Spelling

# The spelling of every Hugging Face norm class: x * rsqrt(v + epsilon), the variance in two passes.
EAGER = Spelling(root="rsqrt")
_DTYPES: Mapping[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "tfloat32": torch.float32,  # only the factors of a matrix product are cut; a norm has none
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def released(
    spec: NormSpec, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, state: State | None = None
) -> Tensor:
    """The norm of x (bfloat16, float16 or float32; shapes as in `formulas.apply`), rounded as `spec` declares.

    Everything up to the normalised row runs in `work_dtype` (`input`: that of x). `cast_before_scale` rounds the row to
    x's dtype and then multiplies by the weight as it is stored, so that a wider weight makes the result wider, as it
    does in the release. The others multiply in the work dtype and round to x's dtype once.
    """
    fused = _fused(spec, x, weight, bias)
    return fused if fused is not None else _spelled(spec, x, weight, bias, state, EAGER)


def variants(
    spec: NormSpec,
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    state: State | None = None,
    one_pass: bool = True,
) -> list[Tensor]:
    """The same norm in the same numerics, in every spelling that a correct implementation may choose.

    The first is `released`. Their spread is the bit noise of the site. `one_pass`: also E[x^2] - E[x]^2, whose error
    grows with mean^2 / variance of the row; leave it out where the declared algorithm is another.
    """
    made = [released(spec, x, weight, bias, state)]
    made += [_spelled(spec, x, weight, bias, state, how) for how in _spellings(spec, one_pass)]
    return made


def work_dtype(spec: NormSpec, x: Tensor) -> torch.dtype:
    """The dtype of the moments of x; NormError where the spec's name is none."""
    if spec.work_dtype == "input":
        return x.dtype
    if spec.work_dtype not in _DTYPES:
        raise NormError(f"work_dtype: expected one of input, {', '.join(_DTYPES)}, found {spec.work_dtype}")
    return _DTYPES[spec.work_dtype]


def _spellings(spec: NormSpec, one_pass: bool) -> Iterator[Spelling]:
    yield EAGER
    if spec.family in ("dyt", "none"):
        return
    yield Spelling()
    yield replace(EAGER, sums="pairwise")
    if one_pass and spec.family in ("layernorm", "layernorm_std_eps", "groupnorm", "instancenorm", "batchnorm"):
        yield replace(EAGER, squares="one_pass")


def _spelled(
    spec: NormSpec, x: Tensor, weight: Tensor | None, bias: Tensor | None, state: State | None, how: Spelling
) -> Tensor:
    work = work_dtype(spec, x)
    y = normalised(spec, x.to(work), state, how)
    gain = weight if spec.scale != "none" else None
    shift = bias if spec.bias else None
    if spec.cast_order == "cast_before_scale":
        y = y.to(x.dtype)
        y = y if gain is None else y * _offset(spec, gain)
        return y if shift is None else y + shift
    if gain is not None:
        # A fused operator is handed the sum as the model's dtype holds it (layernorm1p).
        y = y * (_offset(spec, gain).to(work) if spec.cast_order == "none" else _offset(spec, gain.to(work)))
    return (y if shift is None else y + shift.to(work)).to(x.dtype)


def _offset(spec: NormSpec, weight: Tensor) -> Tensor:
    return weight + spec.scale_offset if spec.scale_offset else weight


def _fused(spec: NormSpec, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """What torch's own operator gives, where it computes exactly this spec; else None."""
    if spec.cast_order != "none" or work_dtype(spec, x) != torch.float32:
        return None
    if spec.axes not in ((-1,), (x.dim() - 1,)) or spec.epsilon_location != "inside" or spec.variance_correction:
        return None
    gain = weight if spec.scale != "none" else None
    shift = bias if spec.bias else None
    width = x.shape[-1:]
    if any(t is not None and (t.dtype != x.dtype or t.shape != width) for t in (gain, shift)):
        return None
    gain = gain if gain is None else _offset(spec, gain)
    if spec.family == "layernorm":
        return torch.nn.functional.layer_norm(x, width, gain, shift, spec.epsilon or 0.0)
    if spec.family == "rmsnorm" and shift is None:
        return torch.nn.functional.rms_norm(x, width, gain, spec.epsilon or 0.0)
    return None
