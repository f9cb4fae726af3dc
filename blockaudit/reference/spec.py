"""What the functions of a manifest come to under one config: typed, checked, with no value left to guess."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from blockaudit.records.bound import BoundManifest
from blockaudit.reference.activations import ACTIVATIONS
from blockaudit.reference.assembly import UnresolvedError
from blockaudit.reference.reader import Reader

ROTARY_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")


class RotarySpec(msgspec.Struct, frozen=True):
    """Rotary positions of one kind of layer. `dim` coordinates turn; the rest by the names of `manifest.functions`."""

    theta: float
    dim: int
    interleaved: bool = False
    type: str = "default"
    factor: float | None = None
    max_length: int | None = None
    original_length: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


class AlibiSpec(msgspec.Struct, frozen=True):
    """Linear biases: their factor, and the dtype that they are rounded to (None: none)."""

    scale: float
    dtype: str | None


class AttentionSpec(msgspec.Struct, frozen=True):
    """One attention branch. `window_layers` are layer numbers as in keys; `causal` says what the mask hides."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    scale_by_layer: bool
    causal: bool
    softcap: float | None
    fused: str | None
    clip: float | None
    window: int | None
    window_layers: tuple[int, ...]
    rotary: RotarySpec | None
    window_rotary: RotarySpec | None
    alibi: AlibiSpec | None
    max_distance: int | None
    nope_dim: int | None
    rope_dim: int | None

    def rotary_of(self, layer: int) -> RotarySpec | None:
        """The rotary positions of a layer."""
        return self.window_rotary if self.window_rotary and layer in self.window_layers else self.rotary

    def window_of(self, layer: int) -> int | None:
        """How many keys a query sees in a layer, its own among them; None: all."""
        return self.window if layer in self.window_layers else None


class RoutingSpec(msgspec.Struct, frozen=True):
    """How tokens are routed to experts (records.functions.Routing). `wide`: the router runs in float32."""

    top_k: int
    score: str
    normalise: bool
    groups: int | None
    top_groups: int | None
    scale: float
    wide: bool


class FeedForwardSpec(msgspec.Struct, frozen=True):
    """One feed-forward branch."""

    activation: str
    fused: str | None
    routing: RoutingSpec | None


class InputsSpec(msgspec.Struct, frozen=True):
    """How ids become the first state of a stack."""

    positions: str = "index"
    offset: int = 0
    padding_id: int | None = None
    projected: str = "tokens"


def attention_spec(bound: BoundManifest, owner: str) -> AttentionSpec:
    """The attention branch `owner` (`decoder.self_attention`). Raises UnresolvedError."""
    read = Reader(bound, owner)
    if not read.has("heads"):
        raise UnresolvedError(f"{owner}: the manifest does not say what the attention computes")
    if read.flag("bidirectional"):
        raise UnresolvedError(f"{owner}.bidirectional is set; the reference has no mask for it")
    kind, head_dim = bound.fields[f"{owner}.kind"].value, read.size("head_dim")
    if bound.fields.get(f"{owner}.score_route") and bound.fields[f"{owner}.score_route"].value != "none":
        raise UnresolvedError(f"{owner}.score_route: scores that join from earlier layers are not in the reference")
    alibi = read.has("alibi") and bool(read.raw("alibi.present"))
    rotary = rotary_spec(bound, f"{owner}.rotary", head_dim) if read.has("rotary.") and not alibi else None
    local = rotary_spec(bound, f"{owner}.window_rotary", head_dim) if read.has("window_rotary.") else None
    scale = read.number("scale")
    scale = head_dim**-0.5 if scale is None else scale
    if read.flag("scale_by_mscale") and rotary is not None and rotary.type != "default" and rotary.mscale_all_dim:
        scale *= yarn_length_factor(read.needed("rotary.factor", rotary.factor), rotary.mscale_all_dim) ** 2
    heads, kv_heads = read.size("heads"), read.size("kv_heads")
    if heads % kv_heads:
        raise UnresolvedError(f"{owner}: {heads} heads cannot share {kv_heads} heads of keys and values")
    return AttentionSpec(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=read.size("value_dim"),
        scale=scale,
        scale_by_layer=read.flag("scale_by_layer"),
        causal="causal" in str(kind),
        softcap=read.field("softcap"),
        fused=read.raw("fused") and read.word("fused", ("qkv", "per_head", "per_group")),
        clip=read.number("clip"),
        window=read.count("window"),
        window_layers=tuple(read.raw("window_layers") or ()),
        rotary=rotary,
        window_rotary=local,
        alibi=AlibiSpec(read.must("alibi.scale"), read.dtype("alibi.dtype")) if alibi else None,
        max_distance=read.size("relative.max_distance") if read.has("relative.") else None,
        nope_dim=read.size("latent.nope_dim") if read.has("latent.") else None,
        rope_dim=read.size("latent.rope_dim") if read.has("latent.") else None,
    )


def rotary_spec(bound: BoundManifest, owner: str, head_dim: int) -> RotarySpec:
    """The rotary positions `owner` (`decoder.self_attention.rotary`). Raises UnresolvedError."""
    read = Reader(bound, owner)
    kind = read.word("type", ROTARY_TYPES)
    dim = read.count("dim")
    dim = head_dim if dim is None else dim
    if dim % 2 or not 0 < dim <= head_dim:
        raise UnresolvedError(f"{owner}.dim is {dim}: expected an even number up to {head_dim}")
    given: dict[str, Any] = {
        name: value
        for name in (
            "factor", "low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow", "mscale",
            "mscale_all_dim",
        )
        if (value := read.number(name)) is not None
    }  # fmt: skip
    longest = read.count("max_length")
    _positive(owner, given)
    found = RotarySpec(
        theta=read.above("theta", 1.0),
        dim=dim,
        interleaved=read.word("pairing", ("half", "interleaved")) == "interleaved",
        type=kind,
        max_length=longest,
        original_length=read.count("original_length") or longest,
        truncate=read.raw("truncate") is not False,
        short_factor=read.numbers("short_factor") if kind == "longrope" else (),
        long_factor=read.numbers("long_factor") if kind == "longrope" else (),
        **given,
    )
    for name in _NEEDS[kind]:
        read.needed(name, getattr(found, name))
    if kind == "dynamic" and dim < 4:
        raise UnresolvedError(f"{owner}.dim is {dim}: dynamic scaling needs more than one pair")
    if kind == "longrope" and {len(found.short_factor), len(found.long_factor)} != {dim // 2}:
        raise UnresolvedError(f"{owner}: short_factor and long_factor do not have {dim // 2} entries")
    return found


def _positive(owner: str, given: dict[str, Any]) -> None:
    """Factors and bounds are above 0; what multiplies a logarithm may be anything."""
    for name, value in given.items():
        if value <= 0 and not name.startswith("mscale"):
            raise UnresolvedError(f"{owner}.{name} is {value:g}: expected more than 0")
    if given.get("low_freq_factor") is not None and given.get("low_freq_factor") == given.get("high_freq_factor"):
        raise UnresolvedError(f"{owner}: low_freq_factor and high_freq_factor are the same")


_NEEDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", "max_length"),
    "yarn": ("factor", "original_length"),
    "longrope": ("max_length", "original_length"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_length"),
}


def yarn_length_factor(factor: float, mscale: float) -> float:
    """YaRN's correction of the temperature for a length stretched by `factor` (Peng et al. 2023, equation 22)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def feed_forward_spec(bound: BoundManifest, owner: str) -> FeedForwardSpec:
    """The feed-forward branch `owner` (`decoder.mlp[moe]`). Raises UnresolvedError."""
    read = Reader(bound, owner)
    if not read.has("activation"):
        raise UnresolvedError(f"{owner}: the manifest does not say what the feed-forward computes")
    return FeedForwardSpec(
        activation=read.word("activation", tuple(ACTIVATIONS)),
        fused=read.raw("fused"),
        routing=_routing(Reader(bound, f"{owner}.routing")) if read.has("routing.") else None,
    )


def _routing(read: Reader) -> RoutingSpec:
    return RoutingSpec(
        top_k=read.size("top_k"),
        score=read.word("score", ("softmax", "sigmoid")),
        normalise=read.flag("normalise"),
        groups=read.count("groups"),
        top_groups=read.count("top_groups"),
        scale=read.must("scale"),
        wide=read.raw("work_dtype") is not None,
    )


def inputs_spec(bound: BoundManifest, stack: str) -> InputsSpec:
    """How ids become the first state of a stack: tokens alone, where the manifest says nothing else."""
    read = Reader(bound, f"{stack}.inputs")
    if not read.has("positions"):
        return InputsSpec()
    if read.raw("positions") == "tokens":
        read.must_count("padding_id")
    return InputsSpec(
        positions=read.raw("positions"),
        offset=read.must_count("offset"),
        padding_id=read.count("padding_id"),
        projected=read.raw("projected"),
    )


def head_activation(bound: BoundManifest) -> str:
    """The activation of the transform before the logits. Raises UnresolvedError."""
    return Reader(bound, "head").word("activation", tuple(ACTIVATIONS))
