"""How often a norm stands between two values: the final norm left out, applied once, or twice."""

from __future__ import annotations

import torch
from torch import Tensor

from blockaudit.records.norm_spec import NormSpec
from blockaudit.reference.norms import apply
from blockaudit.trace.identify.rounding import unit
from blockaudit.trace.identify.solved import Solved, unknown

_FAR = 3.0


def identify_final(
    state: Tensor,
    out: Tensor,
    spec: NormSpec,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype,
    field: str = "final_norm.applied",
) -> Solved:
    """0 (left out), 1 or 2: how often `spec` was applied to state to give out, both [..., D] as captured in `dtype`."""
    gain, shift = (None if v is None else v.double() for v in (weight, bias))
    value, target = state.double(), out.double()
    size = float(target.square().mean().sqrt())
    if not size > 0:
        return unknown(field, "every element is zero or not finite")
    errors: list[float] = []
    for times in range(3):
        value = apply(spec, value, gain, shift) if times else value
        errors.append(float((value - target).square().mean().sqrt()) / size)
    # Two norms round twice, and the second scales what the first rounded.
    allowed = 6 * unit(dtype) + 16 * unit(torch.float32 if dtype != torch.float64 else dtype)
    near = [times for times, error in enumerate(errors) if error <= allowed]
    told = ", ".join(f"{times}: {error:.2g}" for times, error in enumerate(errors))
    if len(near) == 1 and all(e > _FAR * allowed for i, e in enumerate(errors) if i != near[0]):
        return Solved(field, near[0], (near[0], near[0]), f"relative error by times applied: {told}")
    return unknown(field, f"relative error by times applied: {told}")
