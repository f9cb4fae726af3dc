"""Norms as implementations spell them, written here apart from the package: what identification is held to."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

EPSILONS = (0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


@dataclass(frozen=True)
class Case:
    """One norm with known fields: `run` is the candidate, `truth` what identification must not contradict."""

    run: Callable[[Tensor], Tensor]
    weight: Tensor | None
    bias: Tensor | None
    truth: dict[str, object] = field(default_factory=dict)


def root(v: Tensor, epsilon: float, outside: bool) -> Tensor:
    return v.sqrt() + epsilon if outside else (v + epsilon).sqrt()


def moments(x: Tensor, family: str, correction: int) -> tuple[Tensor, Tensor]:
    """The row as it is divided, and what is under the root."""
    if family == "rmsnorm":
        return x, x.pow(2).mean(-1, keepdim=True)
    if family == "scalenorm":
        return x, x.pow(2).sum(-1, keepdim=True)
    z = x - x.mean(-1, keepdim=True)
    return z, x.var(-1, keepdim=True, unbiased=correction == 1)


def norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, *, family: str, epsilon: float, outside: bool = False,
    correction: int = 0, offset: float = 0.0, work: torch.dtype = torch.float32, before: bool = True,
) -> Tensor:  # fmt: skip
    """One norm, cast before or after the weight, its moments in `work`."""
    z, v = moments(x.to(work), family, correction)
    multiplied = not outside and family != "scalenorm"
    y = z * torch.rsqrt(v + epsilon) if multiplied else z / root(v, epsilon, outside)
    gain = 1.0 if weight is None else weight + offset if before else weight.to(work) + offset
    if before:
        y = gain * y.to(x.dtype)
        return y if bias is None else y + bias
    y = gain * y
    return (y if bias is None else y + bias.to(work)).to(x.dtype)


def random_case(rng: random.Random, width: int, dtype: torch.dtype) -> Case:
    """A norm drawn at random: family, epsilon, formula, offset, rounding."""
    family = rng.choice(["rmsnorm"] * 4 + ["layernorm"] * 4 + ["scalenorm"])
    centred = family == "layernorm"
    epsilon = rng.choice([*EPSILONS, 10.0 ** rng.uniform(-9, -1)])
    outside = rng.random() < 0.2
    correction = int(centred and rng.random() < 0.3)
    offset = rng.choice([0.0, 0.0, 1.0])
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    weight = ((1 - offset) + 0.2 * torch.randn(width, generator=generator)).to(dtype)
    bias = (0.3 * torch.randn(width, generator=generator)).to(dtype) if centred else None
    if family == "scalenorm":
        weight, offset = (weight[:1] + 2).to(dtype), 0.0
    narrow = dtype in (torch.bfloat16, torch.float16)
    work = rng.choice([torch.float32] * 5 + [dtype]) if narrow else rng.choice([torch.float32, dtype])
    before = rng.random() < 0.5
    fused = centred and not (outside or correction or offset) and rng.random() < 0.6
    truth = {
        "family": "layernorm_std_eps" if outside and correction else family,
        "center": centred,
        "epsilon": epsilon,
        "epsilon_location": "outside" if outside else "inside",
        "variance_correction": correction,
        "scale_offset": offset,
        "bias": bias is not None,
        "scale": "scalar" if family == "scalenorm" else "per_channel",
    }
    if fused:
        return Case(
            lambda x: torch.nn.functional.layer_norm(x, (width,), weight, bias, epsilon),
            weight,
            bias,
            truth | {"work_dtype": "float32" if narrow else str(dtype)[6:], "cast_order": "cast_after_scale"},
        )
    if narrow and work == dtype:
        truth |= {"work_dtype": str(dtype)[6:]}
    else:
        truth |= {"work_dtype": str(work)[6:], "cast_order": "cast_before_scale" if before else "cast_after_scale"}
    keys = {"family": family, "epsilon": epsilon, "outside": outside, "correction": correction, "offset": offset}
    return Case(lambda x: norm(x, weight, bias, **keys, work=work, before=before), weight, bias, truth)


def random_rows(rng: random.Random, dtype: torch.dtype, most: int = 2**18) -> Tensor:
    """1 to 512 rows of 32 to 2048 channels: at unit scale or small, of one size or several, with a mean or without."""
    width, n = rng.choice([32, 64, 100, 128, 384, 768, 1024, 2048]), rng.choice([1, 2, 4, 8, 32, 64, 128, 512])
    n = min(n, most // width)
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    scale, shift = rng.choice([1.0, 1.0, 0.02, 1e-3, 1e-2, 3.0]), rng.choice([0.0, 0.0, 1.0])
    rows = scale * (shift + torch.randn(n, width, generator=generator, dtype=torch.float64))
    sizes = 1 + rng.choice([0.0, 0.5, 1.0]) * torch.rand(n, 1, generator=generator, dtype=torch.float64)
    return (rows * sizes).to(dtype)
