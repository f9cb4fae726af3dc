"""The block manifest as loaded (`schemas/block_manifest.schema.json`): declarations, nothing resolved yet.

msgspec structs and not dataclasses: one call decodes a manifest file into them, refusing unknown fields, and one call
writes them back. `UNSET` marks a field that the file does not give; a norm site then inherits it from the manifest's
`norm`.
"""

# ruff: noqa: RUF012 - msgspec gives every record a copy of a mutable default; ruff only knows its own base class.

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from blockaudit.records.functions import Attention, FeedForward, Head, Inputs
from blockaudit.records.values import Bound, Struct, Value

NormFamily = Literal[
    "layernorm", "layernorm_std_eps", "rmsnorm", "prmsnorm", "scalenorm", "groupnorm", "instancenorm", "batchnorm",
    "powernorm", "qknorm", "dyt", "none",
]  # fmt: skip


class Subset(Struct, frozen=True):
    """The coordinates that a partial RMSNorm reads (Zhang and Sennrich 2019, pRMSNorm)."""

    coordinates: list[int] | Literal["first", "random"] = "first"
    size: Value = None
    resampled: bool = False
    distributed_owner: str | None = None


class Norm(Struct, frozen=True):
    """One norm site. Fields that are not given come from the manifest's `norm`."""

    family: Value | UnsetType = UNSET
    placement: Value | UnsetType = UNSET
    reduction_axes: list[int] | UnsetType = UNSET
    epsilon: Value | UnsetType = UNSET
    epsilon_location: Literal["inside", "outside"] | Bound | UnsetType | None = UNSET
    variance_correction: int | Bound | UnsetType | None = UNSET
    center: bool | Bound | UnsetType | None = UNSET
    scale: Value | UnsetType = UNSET
    scale_offset: Value | UnsetType = UNSET
    bias: Value | UnsetType = UNSET
    work_dtype: Value | UnsetType = UNSET
    cast_order: Literal["cast_before_scale", "cast_after_scale", "none"] | Bound | UnsetType | None = UNSET
    algorithm: Literal["two_pass", "one_pass", "welford"] | UnsetType | None = UNSET
    groups: Value | UnsetType = UNSET
    couples: list[Literal["examples", "positions"]] | UnsetType = UNSET
    padding_policy: str | UnsetType | None = UNSET
    persistent_state: list[str] | UnsetType = UNSET
    subset: Subset | UnsetType | None = UNSET
    instance: str | UnsetType | None = UNSET
    owner: str | UnsetType | None = UNSET
    # Where it lives in the checkpoint. No module: the norm owns no tensor.
    module: str | UnsetType | None = UNSET
    # What its tensors are called below the module, where that is not `weight` and `bias` (T5X: `scale`).
    names: dict[str, str] | UnsetType = UNSET
    shape: list[str] | UnsetType = UNSET
    when: str | Bound | UnsetType | None = UNSET


class TensorSpec(Struct, frozen=True):
    """One module's `weight` (and `bias`), or one parameter by its full key, as a template.

    `shape` is symbolic, in the order on disk; `layout` says which axis is the output (`in_out`: GPT-2's Conv1D).
    `shape` null: nothing is claimed of it. `tied_to` names the key whose storage this shares when `tie` holds: it may
    then be absent from disk.
    """

    role: str
    module: str | None = None
    key: str | None = None
    shape: list[str] | None = []
    bias: Value = False
    layout: Literal["out_in", "in_out"] = "out_in"
    when: str | Bound | None = None
    optional: bool = False
    derived: bool = False
    tied_to: str | None = None
    tie: Value = False


class Branch(Struct, frozen=True):
    """One residual branch of a block. `kind` is its entry in `branch_order`."""

    name: str
    kind: str
    reads: Value = "state"
    sources: dict[str, str] = {}
    layer_kinds: list[str] = []
    when: str | Bound | None = None
    softcap: Value = None
    score_route: Literal["none", "sum", "mean"] = "none"
    norms: dict[str, Norm] = {}
    tensors: list[TensorSpec] = []
    attention: Attention | None = None
    feed_forward: FeedForward | None = None


class Scale(Struct, frozen=True):
    """A factor of the residual equation: fixed or learned, per what, from which initial value."""

    value: Value = 1.0
    granularity: Literal["scalar", "channel", "head", "layer"] = "scalar"
    learned: bool = False
    init: Value = None


if TYPE_CHECKING:
    Scaled = Value | Scale
else:
    # msgspec cannot tell two kinds of object apart; `Residual.__post_init__` can.
    Scaled = Any


class Residual(Struct, frozen=True):
    """The residual equation: x' = shortcut_scale * shortcut(x) + branch_scale * branch(x)."""

    shortcut: Literal["identity", "constant", "scalar", "vector", "gate", "projection"] | Bound | None = "identity"
    shortcut_source: Literal["state", "normalised_state"] | Bound | None = "state"
    shortcut_scale: Scaled = 1.0
    attention_branch_scale: Scaled = 1.0
    cross_attention_branch_scale: Scaled = 1.0
    mlp_branch_scale: Scaled = 1.0
    dtype: Value = None
    update: Literal["add", "interpolate_retract"] | Bound | None = "add"

    def __post_init__(self) -> None:
        for name in ("shortcut_scale", "attention_branch_scale", "cross_attention_branch_scale", "mlp_branch_scale"):
            given: Any = getattr(self, name)
            if isinstance(given, dict):
                kind = Scale if "value" in given or "learned" in given else Bound
                msgspec.structs.force_setattr(self, name, msgspec.convert(given, kind))


class Dropout(Struct, frozen=True):
    """Dropout of one owner. `position` is relative to the residual add."""

    p: Value = 0.0
    granularity: Literal["element", "channel", "row", "example", "layer"] = "element"
    scaling: Literal["inverted", "none"] = "inverted"
    position: Literal["before_add", "after_add", "inside_branch", "input"] = "before_add"
    schedule: Literal["constant", "linear_in_depth"] = "constant"


class Stack(Struct, frozen=True):
    """A sequence of layers over one state. `layers` counts those run, `stored_layers` those on disk (ALBERT: fewer).

    `layer_axis` is the axis of templates that counts layers within one that is stored.
    """

    name: str
    layers: Value
    first_layer: Value = 0
    stored_layers: Value = None
    layer_kinds: dict[str, str] = {}
    layer_axis: str | None = None
    parallel: Value = False
    inputs: Inputs | None = None
    embedding: list[TensorSpec] = []
    embedding_scale: Value = 1.0
    embedding_norm: Norm | None = None
    branches: list[Branch] = []
    unplaced: dict[str, Norm] = {}
    tensors: list[TensorSpec] = []
    final_norm: Norm | None = None
    logit_scale: Value = 1.0
    logit_softcap: Value = None
    residual: Residual | UnsetType = UNSET
    ignored: bool = False


class ClassSpec(Struct, frozen=True):
    """A model class: what it adds to the base model (`parts`), and what it is called and made of in it.

    `base_prefix` is the prefix of the base model's keys, `stacks` the stacks that it has (all, where it does not say).
    """

    parts: list[str] = []
    base_prefix: str | UnsetType = UNSET
    stacks: list[str] | UnsetType = UNSET


class Match(Struct, frozen=True):
    """How a checkpoint is recognised as this family, and what each class of it adds to the base model."""

    model_types: list[str] = []
    base_class: str | None = None
    base_prefix: str = ""
    classes: dict[str, ClassSpec] = {}


class Manifest(Struct, frozen=True):
    """A block manifest. `norm`, `residual` and `dropout` are the specification's core, inherited by every site."""

    schema: str
    architecture_id: str
    evidence_label: Literal["source-local", "primary-paper", "implementation", "derived"] = "derived"
    source: str = ""
    witness: Literal["declared", "headers", "graph"] = "declared"
    match: Match = Match()
    state_layout: list[str] = []
    branch_order: list[str] | dict[str, list[str]] = []
    norm: Norm = Norm()
    residual: Residual = Residual()
    dropout: dict[str, Dropout] = {}
    final_norm: str | Norm | None = None
    dims: dict[str, Value] = {}
    axes: dict[str, str] = {}
    stacks: list[Stack] = []
    parts: dict[str, list[TensorSpec]] = {}
    buffers: list[TensorSpec] = []
    head: Head | None = None
    config_reads: list[str] = []
