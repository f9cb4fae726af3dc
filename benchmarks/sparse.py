"""Checkpoints of real size that take no disk: headers and small vectors are written, everything else is a hole."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

WIDTH = {"BF16": 2, "F32": 4, "F8_E4M3": 1}
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint to write. `gain`: a norm's weight, which gets trained-looking values."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    gain: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * WIDTH[self.dtype]


@dataclass(slots=True)
class Layout:
    """What to write: tensors by shard, config.json, and what the index says where it differs from the shards."""

    shards: dict[str, list[Tensor]]
    config: dict[str, Any]
    lost_shards: set[str] = field(default_factory=lambda: set[str]())
    total_size: int | None = None
    # The shard that the index names for a key which several hold.
    placed: dict[str, str] = field(default_factory=lambda: dict[str, str]())

    def copy(self) -> Layout:
        return Layout({name: list(held) for name, held in self.shards.items()}, dict(self.config))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(shard, tensor) in file order."""
        for name, held in self.shards.items():
            yield from ((name, tensor) for tensor in held)

    def holder(self, key: str) -> tuple[str, int]:
        """The shard that holds a key, and its place there."""
        for name, held in self.shards.items():
            for place, tensor in enumerate(held):
                if tensor.key == key:
                    return name, place
        raise KeyError(key)


def split(tensors: list[Tensor], count: int, config: Mapping[str, Any]) -> Layout:
    """Tensors over `count` shards of about equal size, in order; a shard is never empty."""
    share = sum(t.nbytes for t in tensors) / count
    names = [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
    shards: dict[str, list[Tensor]] = {name: [] for name in names}
    done = 0
    for tensor in tensors:
        shards[names[min(count - 1, int(done / share))]].append(tensor)
        done += tensor.nbytes
    return Layout({name: held for name, held in shards.items() if held}, dict(config))


def write(folder: Path, layout: Layout) -> Path:
    """Write a checkpoint; the folder is made, and may be written again."""
    folder.mkdir(parents=True, exist_ok=True)
    turns = {tensor.key: turn for turn, tensor in enumerate(t for _, t in layout.tensors() if t.gain)}
    for name, held in layout.shards.items():
        if name in layout.lost_shards:
            (folder / name).unlink(missing_ok=True)
        else:
            _write_shard(folder / name, held, turns)
    (folder / "config.json").write_text(json.dumps(layout.config, indent=2))
    weight_map = {tensor.key: name for name, tensor in layout.tensors()} | layout.placed
    total = layout.total_size or sum(tensor.nbytes for _, tensor in layout.tensors())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2))
    return folder


def _write_shard(path: Path, held: list[Tensor], turns: Mapping[str, int]) -> None:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    vectors: list[tuple[int, bytes]] = []
    end = 0
    for t in held:
        entries[t.key] = {"dtype": t.dtype, "shape": t.shape, "data_offsets": (end, end + t.nbytes)}
        if t.gain:
            vectors.append((end, _gain(t.shape[0], turns[t.key])))
        end += t.nbytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        start = file.tell()
        for offset, values in vectors:
            file.seek(start + offset)
            file.write(values)
        file.truncate(start + end)


def _gain(length: int, turn: int) -> bytes:
    """Gains of a trained norm in BF16: about one, and no two vectors alike."""
    base = _base(length)
    at = 2 * (turn % length)
    return base[at:] + base[:at]


@cache
def _base(length: int) -> bytes:
    draw = random.Random(length)
    floats = struct.pack(f"<{length}f", *(draw.gauss(1.0, 0.05) for _ in range(length)))
    return b"".join(floats[at + 2 : at + 4] for at in range(0, len(floats), 4))
