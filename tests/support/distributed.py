"""Distributed checkpoints, saved by torch in one process, and metadata changed through torch's own classes."""

from __future__ import annotations

import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex

LLAMA = Path(__file__).parents[2] / "fixtures" / "tiny_llama"
FILE = "__0_0.distcp"


def weights() -> dict[str, torch.Tensor]:
    return load_file(str(LLAMA / "model.safetensors"))


def save(folder: Path, state: dict[str, Any], *, config: bool = True) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=str(folder), no_dist=True)
    if config:
        shutil.copy(LLAMA / "config.json", folder)
    return folder


def change(folder: Path, how: Callable[[Metadata], None]) -> Path:
    """Unpickle the metadata, change it and pickle it again."""
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    how(metadata)
    path.write_bytes(pickle.dumps(metadata))
    return folder


def cut(key: str, *boxes: tuple[list[int], list[int]]) -> Callable[[Metadata], None]:
    """Say that a tensor is stored in these boxes, (offsets, sizes) each, all where the whole was."""

    def how(metadata: Metadata) -> None:
        places = metadata.storage_data
        place = next(info for index, info in places.items() if index.fqn == key)
        metadata.state_dict_metadata[key].chunks = [  # type: ignore[union-attr]
            ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in boxes
        ]
        for index in [i for i in places if i.fqn == key]:
            del places[index]
        for i, (offsets, _) in enumerate(boxes):
            places[MetadataIndex(key, offsets, i)] = place

    return how
