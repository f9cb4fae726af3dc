"""The checkpoint manifest (`schemas/checkpoint_manifest.schema.json`): the keys that carry a block's state."""

from __future__ import annotations

from typing import Literal

from blockaudit.records.manifest import Struct


class StoredTensor(Struct, frozen=True):
    """One key template with its shape on disk and the convention that it was written in."""

    key: str
    shape: list[int | str]
    transpose: Literal["out_in", "in_out", "none"] = "none"
    dtype: str | None = None


class SharedState(Struct, frozen=True):
    """Two names of one state: `tied` by the model, or `aliased` by the file alone."""

    key: str
    same_as: str
    how: Literal["tied", "aliased"] = "tied"


class StoredNorm(Struct, frozen=True):
    """The keys of one norm site. No bias key is the fact that there is no bias, not leave to invent one."""

    site: str
    weight: str | None
    bias: str | None = None


class StoredBuffer(Struct, frozen=True):
    """State that is no parameter: `derived` from the config, or `owned` by the checkpoint."""

    key: str
    state: Literal["derived", "owned"]
    derived_from: str | None = None


class Quantisation(Struct, frozen=True):
    """How weights are packed, and which are left as they are."""

    scheme: Literal["gptq", "awq", "bitsandbytes_8bit", "bitsandbytes_4bit", "fp8", "mxfp4"]
    bits: int
    group_size: int | None = None
    excluded: tuple[str, ...] = ()


class CheckpointManifest(Struct, frozen=True):
    """Every key of a checkpoint. `axes` are the numbered axes of the templates, by how many there are."""

    schema: str
    architecture_id: str
    axes: dict[str, int | str]
    tensors: list[StoredTensor]
    shared: tuple[SharedState, ...] = ()
    norms: tuple[StoredNorm, ...] = ()
    final_norm: str | None = None
    buffers: tuple[StoredBuffer, ...] = ()
    quantisation: Quantisation | None = None
