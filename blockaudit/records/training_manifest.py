"""The training manifest (`schemas/training_manifest.schema.json`): what a training step needs to be the same again."""

from __future__ import annotations

from typing import Literal

from blockaudit.records.manifest import Struct

Coordinate = Literal["step", "microbatch", "layer", "branch", "row", "channel"]


class TrainingDropout(Struct, frozen=True):
    """Dropout of one owner as trained."""

    p: float
    granularity: Literal["element", "channel", "row", "example", "layer"] = "element"


class RngIdentity(Struct, frozen=True):
    """The logical coordinates that a random decision is a function of, and how a recomputation gets it again."""

    coordinates: list[Coordinate]
    generator: str
    replay: Literal["saved_mask", "regenerated"]


class InitialGain(Struct, frozen=True):
    """How one group of matrices starts. `meaning` says what `number` is: papers give either."""

    group: str
    distribution: Literal["normal", "truncated_normal", "uniform", "zeros", "ones"]
    number: float | None = None
    meaning: Literal["standard_deviation", "variance", "bound"] | None = None
    depth_scaled: bool = False


class Optimizer(Struct, frozen=True):
    """The optimizer and the state that a resumed run needs of it."""

    name: str
    state: list[str]
    state_dtype: str
    master_weights: bool = False


class Autocast(Struct, frozen=True):
    """Mixed precision."""

    enabled: bool
    dtype: str | None = None
    loss_scaling: bool = False


class TrainingManifest(Struct, frozen=True):
    """One training setup. `counters` are the schedule's (`step`, `warmup_steps`, `total_steps`, `tokens`)."""

    schema: str
    architecture_id: str
    mode: Literal["train", "eval"]
    eval_modules: list[str]
    dropout: dict[str, TrainingDropout]
    rng: RngIdentity | None
    saved: list[str]
    recomputed: list[str]
    initialization: list[InitialGain]
    optimizer: Optimizer | None
    counters: dict[str, int]
    autocast: Autocast
