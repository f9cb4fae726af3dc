"""The runtime manifest (`schemas/runtime_manifest.schema.json`): how the same function is computed."""

from __future__ import annotations

from typing import Literal

from blockaudit.records.manifest import Struct


class Ownership(Struct, frozen=True):
    """Who holds which part of one operand of the residual add."""

    layout: Literal["replicated", "sequence", "hidden", "context"]
    degree: int = 1


class Parallel(Struct, frozen=True):
    """Ownership at the add: both operands must have one map, not only one local shape."""

    residual: Ownership
    branch: Ownership
    reduced_before_add: bool = True


class Deterministic(Struct, frozen=True):
    """What is promised about a second run. `rng`: from what random decisions are drawn."""

    enabled: bool
    rng: Literal["logical_coordinates", "launch_order"] | None = None
    reduction_order: Literal["fixed", "any"] = "any"


class RuntimeManifest(Struct, frozen=True):
    """One runtime of one architecture."""

    schema: str
    architecture_id: str
    backend: Literal["eager", "compiled", "fused"]
    fused: list[str]
    accumulation_dtype: str
    residual_dtype: str
    output_dtype: str
    pipeline_dtype: str | None
    parallel: Parallel
    deterministic: Deterministic
