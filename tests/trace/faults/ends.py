"""Faults before the first layer and after the last."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.trace.faults.patch import forward, load
from tests.trace.faults.table import fault

EMBED, LOGITS = "embedding-scale-mismatch", "logit-scale-mismatch"


@fault(
    "llama", "logits", "final-norm-missing", "decoder.final_norm.present", "", value=False, also="site-missing",
    missing=("final_norm",),
)  # fmt: skip
def final_norm_skipped(source, *, device, dtype):
    m = load(source, device, dtype)
    m.model.norm = nn.Identity()
    return m


@fault("llama", "final_norm", "final-norm-unexpected", "decoder.final_norm.applied", "", value=2)
def final_norm_doubled(source, *, device, dtype):
    m = load(source, device, dtype)
    norm = m.model.norm
    own = norm.forward
    norm.forward = lambda x: own(own(x))
    return m


class Tapped(nn.Module):
    """A wrapper that gives the state from before the final norm as the one after it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.lm_head, self.inner = model.model, model.lm_head, [model]

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        kept: dict[str, torch.Tensor] = {}
        handle = self.model.norm.register_forward_pre_hook(lambda _m, args: kept.update(last_hidden_state=args[0]))
        try:
            out = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        finally:
            handle.remove()
        return {"logits": self.lm_head(out.last_hidden_state), **kept}


@fault("llama", "", also="final-norm-missing site-missing", missing=("final_norm",))
def tapped_before_the_final_norm(source, *, device, dtype):
    return Tapped(load(source, device, dtype))


@fault("gemma2", "embed", EMBED, "decoder.embedding.scale", "", value=1)
def embedding_scale_dropped(source, *, device, dtype):
    m = load(source, device, dtype)
    m.model.embed_tokens.embed_scale = torch.ones_like(m.model.embed_tokens.embed_scale)
    return m


@fault("gemma2", "embed", EMBED, "decoder.embedding.scale", "", value=32)
def embedding_scale_twice(source, *, device, dtype):
    m = load(source, device, dtype)
    own = m.model.embed_tokens.forward
    m.model.embed_tokens.forward = lambda ids: own(ids) * 32**0.5
    return m


@fault("granite", "embed", EMBED, "decoder.embedding.scale", "")
def embedding_multiplier_inverted(source, *, device, dtype):
    m = load(source, device, dtype)
    m.model.embedding_multiplier = 1 / 12.0
    return m


@fault("granite", "logits", LOGITS, "logits.scale", "", value=1)
def logit_scale_dropped(source, *, device, dtype):
    m = load(source, device, dtype)
    m.config.logits_scaling = 1.0
    return m


@fault("cohere", "logits", LOGITS, "logits.scale", "")
def logit_scale_inverted(source, *, device, dtype):
    m = load(source, device, dtype)
    m.logit_scale = 1 / m.logit_scale
    return m


@fault("gemma2", "logits", LOGITS, "logits.softcap", "")
def logit_softcap_dropped(source, *, device, dtype):
    m = load(source, device, dtype)
    m.config.final_logit_softcapping = None
    return m


@fault("gpt_neox", "final_norm", "norm-family-mismatch", "decoder.final_norm.family", "", value="rmsnorm")
def final_norm_not_centred(source, *, device, dtype):
    def call(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) + self.bias

    m = load(source, device, dtype)
    forward(m.gpt_neox.final_layer_norm, call)
    return m


@fault("llama", "logits")
def head_of_a_permuted_vocabulary(source, *, device, dtype):
    m = load(source, device, dtype)
    with torch.no_grad():
        m.lm_head.weight.copy_(m.lm_head.weight.roll(1, 0))
    return m
