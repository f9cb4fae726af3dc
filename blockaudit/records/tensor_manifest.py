"""The tensor manifest (`schemas/tensor_manifest.schema.json`): what a rank does not say of a tensor."""

from __future__ import annotations

from typing import Literal

from blockaudit.records.manifest import Struct


class ValidRows(Struct, frozen=True):
    """Which rows of a tensor are real and which are padding: `axes` count rows, `given_by` says which hold data."""

    axes: list[str]
    given_by: Literal["all", "attention_mask", "lengths", "position_ids", "router"] = "all"


class TensorEntry(Struct, frozen=True):
    """One tensor of a run: an activation at a trace site, or a parameter."""

    name: str
    axes: list[str]
    shape: list[int | str]
    dtype: str
    device: str
    branch_owner: str
    valid_rows: ValidRows | None = None
    stride: list[int] | None = None
    contiguity: Literal["contiguous", "strided"] = "contiguous"


class TensorManifest(Struct, frozen=True):
    """Tensors of one block, by name. `branches` are the block's, so that an owner can be told from a slip."""

    schema: str
    architecture_id: str
    branches: list[str]
    tensors: list[TensorEntry]
