"""LLaMA 3 as torchtitan 0.3.0 stores it: Meta's equations, its own names for q, k, v and the head."""

from __future__ import annotations

from typing import Any

import torch

from tests.migrate.library.layouts import meta
from tests.migrate.library.layouts.sizes import Sizes

_ATTENTION, _HEAD = "attention.qkv_linear", "lm_head"


def config(sizes: Sizes) -> dict[str, Any]:
    """The arguments of its builder, under its names: hidden_dim is the width itself."""
    params = {k: v for k, v in meta.config(sizes).items() if k not in ("multiple_of", "ffn_dim_multiplier")}
    return {**params, "hidden_dim": sizes.d_ff}


def weights(sizes: Sizes, seed: int) -> meta.Weights:
    return meta.weights(sizes, seed, attention=_ATTENTION, head=_HEAD)


def logits(found: meta.Weights, params: dict[str, Any], ids: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, vocab] of ids [batch, tokens]."""
    return meta.logits(found, params, ids, attention=_ATTENTION, head=_HEAD)
