"""What candidates are made of: a Hugging Face model, and ways to put one fault in it."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def load(source: str, device: Any, dtype: torch.dtype) -> Any:
    """The class that config.json names, with its weights, eager."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(source)
    cls = getattr(transformers, config.architectures[0])
    model = cls.from_pretrained(source, dtype=dtype, attn_implementation="eager", experts_implementation="batched_mm")
    return model.to(device).eval()


def forward(module: Any, call: Callable[..., Any]) -> None:
    """Gives one module another forward."""
    module.forward = types.MethodType(call, module)


def normed(module: Any, formula: Callable[[Any, Tensor], Tensor]) -> None:
    """Gives a norm another formula of (module, x)."""
    forward(module, lambda self, x: formula(self, x))


def rms(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def centred(x: Tensor, eps: float) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], None, None, eps)


def llama_layer(
    layer: Any,
    *,
    attn_in: Callable[[Any, Tensor, Tensor], Tensor] | None = None,
    attn_mix: Callable[[Any, Tensor, Tensor, Tensor], Tensor] | None = None,
    mlp_in: Callable[[Any, Tensor, Tensor, Tensor], Tensor] | None = None,
    mlp_mix: Callable[[Any, Tensor, Tensor, Tensor], Tensor] | None = None,
    scale: float = 1.0,
) -> None:
    """A pre-norm layer with parts replaced.

    attn_in(layer, x, n), attn_mix(layer, x, n, a), mlp_in(layer, x, h, n), mlp_mix(layer, h, n, u): x enters, n is
    normalised, a and u leave the branches, h is between them. `scale` is the class's own factor on both branches.
    """

    def call(self: Any, hidden_states: Tensor, **kw: Any) -> Tensor:
        x = hidden_states
        n = self.input_layernorm(x)
        a, _ = self.self_attn(hidden_states=n if attn_in is None else attn_in(self, x, n), **kw)
        h = x + a * scale if attn_mix is None else attn_mix(self, x, n, a)
        n = self.post_attention_layernorm(h) if mlp_in is None else mlp_in(self, x, h, n)
        u = self.mlp(n)
        return h + u * scale if mlp_mix is None else mlp_mix(self, h, n, u)

    forward(layer, call)
