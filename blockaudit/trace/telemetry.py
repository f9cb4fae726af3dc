"""Update geometry at residual adds (specification 0x0CA): how large an update is, and where it points."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from blockaudit.records.conformance import Quantiles, Telemetry

_norm = cast("Callable[..., Tensor]", torch.linalg.vector_norm)  # pyright: ignore[reportUnknownMemberType]
DELTA = 1e-8  # in both denominators, in units of the state


def update(
    site: str, state: Tensor, update: Tensor, after: Tensor, valid: Tensor | None = None, delta: float = DELTA
) -> Telemetry:
    """Geometry of one add, per token, and its quantiles over the tokens.

    state, update and after: [..., D] in any dtype, on one device; valid: [...] true or false, the tokens that count.
    Per token rho = RMS(update) / (RMS(state) + delta), cosine = <state, update> / (|state| |update| + delta), and
    growth = RMS(after) / RMS(state), from sums in float64. Tokens with a value that is not finite are left out; so are,
    of growth alone, tokens whose state is zero. Where no token is left a quantile is NaN.
    """
    x, u, y = rms(state), rms(update), rms(after)
    width = state.shape[-1]
    cosine = _dot(state, update) / (width * x * u + delta)
    keep = x.isfinite() & u.isfinite() & y.isfinite()
    used = keep if valid is None else keep & valid.to(keep.device).bool()
    return Telemetry(
        site,
        rho=quantiles((u / (x + delta))[used]),
        cosine=quantiles(cosine[used]),
        growth=quantiles((y / x)[used & (x > 0)]),
    )


def stack_growth(first: Tensor, last: Tensor, valid: Tensor | None = None) -> Quantiles:
    """RMS of the state that leaves the last layer over that of the state that enters the first, over tokens.

    first and last: what `rms` gave for the two states, so that a streaming run keeps one number per token.
    """
    last = last.to(first.device)
    used = first.isfinite() & last.isfinite() & (first > 0)
    return quantiles((last / first)[used if valid is None else used & valid.to(first.device).bool()])


def rms(x: Tensor) -> Tensor:
    """Root mean square of each row: [..., D] -> [...], float64 (float32 where the device has none)."""
    return _norm(x, dim=-1, dtype=_wide(x)) / x.shape[-1] ** 0.5


def quantiles(values: Tensor) -> Quantiles:
    """5 %, 50 %, 95 % and the largest of some finite numbers, linear between neighbours (rank q (n - 1), from 0)."""
    if values.numel() == 0:
        return Quantiles(math.nan, math.nan, math.nan, math.nan)
    # torch.quantile refuses more than 16 million numbers.
    ranked = values.flatten().sort().values
    place = torch.tensor([0.05, 0.5, 0.95, 1.0], device=ranked.device, dtype=ranked.dtype) * (ranked.numel() - 1)
    below = place.floor().long()
    above = place.ceil().long()
    found = torch.lerp(ranked[below], ranked[above], place - below).cpu()
    return Quantiles(*(float(number) for number in found))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    wide = _wide(a)
    return (a.to(wide) * b.to(wide)).sum(-1)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64
