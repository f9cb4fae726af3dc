"""What a branch, an embedding and a head compute, as the manifest declares it: what the full reference runs.

No witness but the manifest and config.json speaks of these fields, so they are no rows of the contract.
"""

from __future__ import annotations

from typing import Literal

from blockaudit.records.values import Bound, Struct, Value


class Rotary(Struct, frozen=True):
    """Rotary positions (Su et al. 2021, RoFormer): pair i of `dim` coordinates turns by position * theta^(-2 i / dim).

    `pairing`: coordinate i turns with i + dim / 2 (`half`) or 2 i with 2 i + 1 (`interleaved`). `scaling` is the object
    of config.json that stretches the frequencies (its `rope_type`, `factor`, ...).
    """

    theta: Value = 10000.0
    dim: Value = None
    pairing: Literal["half", "interleaved"] | Bound = "half"
    scaling: Bound | None = None
    max_length: Value = None
    original_length: Value = None


class Alibi(Struct, frozen=True):
    """Linear biases of scores (Press et al. 2022): slope of the head * position of the key, times `scale`."""

    when: str | Bound | None = None
    scale: Value = 1.0
    dtype: Value = None


class Relative(Struct, frozen=True):
    """T5's learned bias of scores by bucket of distance (Raffel et al. 2020). The table's role: `relative_bias`."""

    max_distance: Value = 128


class Latent(Struct, frozen=True):
    """Latent attention (DeepSeek-V2 2024): a head's queries and keys are `nope_dim` plain and `rope_dim` turned."""

    nope_dim: Value = None
    rope_dim: Value = None


class Attention(Struct, frozen=True):
    """softmax(scale * q k^T + bias) v, head by head. `kv_heads`: each serves heads / kv_heads query heads.

    `fused` is the layout of one projection for q, k and v. `window` keys, the query's own among them, are seen in the
    layers of `window_when`; those turn by `window_rotary` where it is given.
    """

    heads: Value
    head_dim: Value
    kv_heads: Value = None
    value_dim: Value = None
    scale: Value = None
    scale_by_layer: Value = False
    scale_by_mscale: Value = False
    fused: Literal["qkv", "per_head", "per_group"] | Bound | None = None
    clip: Value = None
    bidirectional: Value = False
    window: Value = None
    window_when: str | Bound | None = None
    rotary: Rotary | None = None
    window_rotary: Rotary | None = None
    alibi: Alibi | None = None
    relative: Relative | None = None
    latent: Latent | None = None


class Routing(Struct, frozen=True):
    """Which experts a token goes to: the `top_k` best scores, of the `top_groups` best of `groups` groups.

    `work_dtype` is the dtype that the router runs in; None: that of the state.
    """

    top_k: Value
    score: Literal["softmax", "sigmoid"] | Bound = "softmax"
    normalise: Value = False
    groups: Value = None
    top_groups: Value = None
    scale: Value = 1.0
    work_dtype: Literal["float32"] | None = None


class FeedForward(Struct, frozen=True):
    """down(act(up x)), or down(act(gate x) * up x); of a mixture, the sum over the chosen and the shared experts."""

    activation: Value
    fused: Literal["gate_up", "up_gate", "interleaved"] | None = None
    routing: Routing | None = None


class Inputs(Struct, frozen=True):
    """How ids become the first state: tokens, plus learned positions and the first token type.

    `positions` counts all tokens before one (`index`), the valid ones (`mask`), or those that are not `padding_id`
    (`tokens`); `offset` rows of the table come first. `projected`: what the projection into the state is applied to.
    """

    positions: Literal["index", "mask", "tokens"] = "index"
    offset: Value = 0
    padding_id: Value = None
    projected: Literal["tokens", "normalised"] = "tokens"


class Head(Struct, frozen=True):
    """The transform before the logits of a masked language model: norm(act(dense x)), the norm that of the manifest."""

    activation: Value
