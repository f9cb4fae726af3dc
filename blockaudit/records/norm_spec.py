"""One norm site with every field resolved: what the reference executes."""

from __future__ import annotations

from typing import Literal

import msgspec

NORM_FIELDS = (
    "family", "epsilon", "epsilon_location", "variance_correction", "center", "scale", "scale_offset", "bias",
    "work_dtype", "cast_order",
)  # fmt: skip


class NormSpec(msgspec.Struct, frozen=True):
    """The fields of a norm that its value depends on, as the manifest declares them (records.manifest.Norm).

    `groups` and `subset` (the number of leading coordinates, or their indices) only matter to the families that have
    them. `work_dtype` is the dtype of the moments; `cast_order` says whether the row is cast back before or after the
    multiplication by the weight.
    """

    family: str
    epsilon: float | None = None
    epsilon_location: Literal["inside", "outside"] = "inside"
    variance_correction: int = 0
    center: bool = False
    scale: str = "per_channel"
    scale_offset: float = 0.0
    bias: bool = False
    work_dtype: str = "float32"
    cast_order: str = "none"
    axes: tuple[int, ...] = (-1,)
    groups: int | None = None
    subset: int | tuple[int, ...] | None = None
