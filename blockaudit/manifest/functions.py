"""What branches, embedding and head compute, resolved by name (`decoder.self_attention.rotary.theta`).

These are no contract fields: only the manifest and config.json speak of them. The full reference runs them.
"""

from __future__ import annotations

from typing import Any, cast

from msgspec.structs import replace

from blockaudit.manifest import grammar
from blockaudit.manifest.fields import norm_fields
from blockaudit.manifest.values import Resolver
from blockaudit.records.bound import Resolved
from blockaudit.records.functions import (
    Alibi,
    Attention,
    FeedForward,
    Head,
    Inputs,
    Latent,
    Relative,
    Rotary,
    Routing,
)
from blockaudit.records.manifest import Branch, Manifest, Norm, Stack

# The names that config.json gives to what stretches rotary frequencies, and ours; the first present wins.
SCALING = {
    "type": ("rope_type", "type"),
    "factor": ("factor",),
    "original_length": ("original_max_position_embeddings",),
    "low_freq_factor": ("low_freq_factor",),
    "high_freq_factor": ("high_freq_factor",),
    "attention_factor": ("attention_factor",),
    "beta_fast": ("beta_fast",),
    "beta_slow": ("beta_slow",),
    "mscale": ("mscale",),
    "mscale_all_dim": ("mscale_all_dim",),
    "truncate": ("truncate",),
    "short_factor": ("short_factor",),
    "long_factor": ("long_factor",),
}

Functions = dict[str, Resolved]


def branch_functions(owner: str, branch: Branch, layers: tuple[int, ...], resolver: Resolver) -> Functions:
    """What a branch computes, where the manifest says it. `layers` are the numbers, as in keys, that have it."""
    found: Functions = {}
    if branch.attention is not None:
        found |= _attention(branch.attention, layers, resolver)
    if branch.feed_forward is not None:
        found |= _feed_forward(branch.feed_forward, resolver)
    return _under(owner, found)


def stack_functions(stack: Stack, resolver: Resolver) -> Functions:
    """How ids become the first state of a stack, and the axis on which one stored layer holds several."""
    found = {} if stack.inputs is None else _inputs(stack.inputs, resolver)
    if stack.layer_axis is not None:
        found["layer_axis"] = Resolved(stack.layer_axis)
    return _under(stack.name, found)


def head_functions(manifest: Manifest, resolver: Resolver) -> Functions:
    """What stands between the last state and the logits."""
    head: Head | None = manifest.head
    if head is None:
        return {}
    norm = norm_fields("head", Norm(), manifest.norm, resolver)
    return {"head.activation": resolver.value(head.activation), **_under("head.norm", norm)}


def _under(owner: str, found: Functions) -> Functions:
    return {f"{owner}.{name}": value for name, value in found.items()}


def _attention(spec: Attention, layers: tuple[int, ...], resolver: Resolver) -> Functions:
    found = {
        "heads": resolver.value(spec.heads),
        "head_dim": resolver.value(spec.head_dim),
        "kv_heads": resolver.value(spec.heads if spec.kv_heads is None else spec.kv_heads),
        "value_dim": resolver.value(spec.head_dim if spec.value_dim is None else spec.value_dim),
        "scale": resolver.value(spec.scale),
        "scale_by_layer": resolver.value(spec.scale_by_layer),
        "scale_by_mscale": resolver.value(spec.scale_by_mscale),
        "fused": resolver.value(spec.fused),
        "clip": resolver.value(spec.clip),
        "bidirectional": resolver.value(spec.bidirectional),
        "window": resolver.value(spec.window),
    }
    window = found["window"]
    if window.value is not None or not window.known:
        found["window_layers"] = _layers(spec.window_when, layers, resolver)
    if spec.rotary is not None:
        found |= _under("rotary", _rotary(spec.rotary, resolver))
    if spec.window_rotary is not None:
        found |= _under("window_rotary", _rotary(spec.window_rotary, resolver))
    if spec.alibi is not None:
        found |= _under("alibi", _alibi(spec.alibi, resolver))
    if spec.relative is not None:
        found |= _under("relative", _relative(spec.relative, resolver))
    if spec.latent is not None:
        found |= _under("latent", _latent(spec.latent, resolver))
    return found


def _layers(when: Any, layers: tuple[int, ...], resolver: Resolver) -> Resolved:
    """The layers where a condition holds."""
    if isinstance(when, str) and "l" in grammar.symbols(when):
        said = resolver.by_layer(when, layers)
        keys = tuple(dict.fromkeys(k for r in said.values() for k in r.keys))
        return Resolved(tuple(n for n, r in said.items() if r.value), all(r.known for r in said.values()), keys)
    said = resolver.condition(when)
    return replace(said, value=layers if said.value else ())


def _rotary(spec: Rotary, resolver: Resolver) -> Functions:
    found = {
        "theta": resolver.value(spec.theta),
        "dim": resolver.value(spec.dim),
        "pairing": resolver.value(spec.pairing),
        "max_length": resolver.value(spec.max_length),
        **_scaling(resolver.value(spec.scaling)),
    }
    own = resolver.value(spec.original_length)
    if own.value is not None or not own.known:
        found["original_length"] = own
    return found


def _scaling(given: Resolved) -> Functions:
    """What stretches the frequencies, each by our own name; `type` default where there is nothing."""
    if not given.known:
        return {"type": given}
    stretched: Any = given.value
    said = cast("dict[str, Any]", stretched) if isinstance(stretched, dict) else {}
    found: Functions = {}
    for name, spellings in SCALING.items():
        value = next((said[s] for s in spellings if said.get(s) is not None), None)
        if value is not None:
            found[name] = replace(given, value=value)
    if stretched is not None and not isinstance(stretched, dict):
        found["type"] = replace(given, value=f"{stretched!r}, which is no object")
    return {"type": Resolved("default"), **found}


def _alibi(spec: Alibi, resolver: Resolver) -> Functions:
    return {
        "present": resolver.condition(spec.when),
        "scale": resolver.value(spec.scale),
        "dtype": resolver.value(spec.dtype),
    }


def _relative(spec: Relative, resolver: Resolver) -> Functions:
    return {"max_distance": resolver.value(spec.max_distance)}


def _latent(spec: Latent, resolver: Resolver) -> Functions:
    return {"nope_dim": resolver.value(spec.nope_dim), "rope_dim": resolver.value(spec.rope_dim)}


def _feed_forward(spec: FeedForward, resolver: Resolver) -> Functions:
    found = {"activation": resolver.value(spec.activation), "fused": Resolved(spec.fused)}
    return found if spec.routing is None else found | _under("routing", _routing(spec.routing, resolver))


def _routing(spec: Routing, resolver: Resolver) -> Functions:
    return {
        "top_k": resolver.value(spec.top_k),
        "score": resolver.value(spec.score),
        "normalise": resolver.value(spec.normalise),
        "groups": resolver.value(spec.groups),
        "top_groups": resolver.value(spec.top_groups),
        "scale": resolver.value(spec.scale),
        "work_dtype": Resolved(spec.work_dtype),
    }


def _inputs(spec: Inputs, resolver: Resolver) -> Functions:
    return _under("inputs", {
        "positions": Resolved(spec.positions),
        "offset": resolver.value(spec.offset),
        "padding_id": resolver.value(spec.padding_id),
        "projected": Resolved(spec.projected),
    })  # fmt: skip
