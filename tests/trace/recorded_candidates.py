"""Candidates of a tiny LLaMA: clean, with a fault in layer 1, and objects with `trace`, some of which give none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Make = Callable[..., Any]
Change = Callable[[dict[str, Any]], Any]


def clean(source: str, *, device: str, dtype: torch.dtype) -> Any:
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(source, dtype=dtype, attn_implementation="eager")
    return model.to(device).eval()


def epsilon(source: str, **options: Any) -> Any:
    """An epsilon of 1e-5 for 1e-6."""
    model = clean(source, **options)
    model.model.layers[1].input_layernorm.variance_epsilon = 1e-5
    return model


def doubled(source: str, **options: Any) -> Any:
    """The shortcut of attention twice."""
    model = clean(source, **options)
    layer = model.model.layers[1]

    def forward(hidden_states: Any, **more: Any) -> Any:
        h = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **more)[0]
        h = 2 * hidden_states + h
        return h + layer.mlp(layer.post_attention_layernorm(h))

    layer.forward = forward
    return model


class Traced:
    """A model that is watched from outside: norms, branches and states, without the sums."""

    def __init__(self, model: Any, change: Change) -> None:
        self.model, self.change = model, change

    def trace(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        found: dict[str, Any] = {}
        inner = self.model.model
        places = {"embed": inner.embed_tokens, "final_norm": inner.norm}
        for n, layer in enumerate(inner.layers):
            at = f"layers.{n}"
            places |= {f"{at}.self_attention.norm_in": layer.input_layernorm, f"{at}.mlp.branch": layer.mlp}
            places |= {f"{at}.self_attention.branch": layer.self_attn, f"{at}.state": layer}
            places |= {f"{at}.mlp.norm_in": layer.post_attention_layernorm}

        def keep(site: str) -> Callable[[Any, Any, Any], None]:
            return lambda module, given, out: found.update({site: out[0] if isinstance(out, tuple) else out})

        hooks = [module.register_forward_hook(keep(site)) for site, module in places.items()]
        with torch.no_grad():
            found["logits"] = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        for hook in hooks:
            hook.remove()
        return self.change(found)


def _traced(make: Make, change: Change = dict) -> Make:
    def made(source: str, **options: Any) -> Traced:
        return Traced(make(source, **options), change)

    return made


def _raise(found: dict[str, Any]) -> Any:
    raise ValueError("no such kernel\nat line 7")


traced = _traced(clean)
traced_epsilon = _traced(epsilon)
broken_code = _traced(clean, _raise)
short = _traced(clean, lambda found: {**found, "final_norm": found["final_norm"][:, :-1]})
narrow = _traced(clean, lambda found: {**found, "final_norm": found["final_norm"][..., :-1]})
unnamed = _traced(clean, lambda found: {**found, "layers.0.mlp.norm": found["embed"]})
nothing = _traced(clean, lambda found: None)
empty = _traced(clean, lambda found: {})
no_tensor = _traced(clean, lambda found: {**found, "embed": [1.0]})
no_floats = _traced(clean, lambda found: {**found, "embed": found["embed"].long()})
