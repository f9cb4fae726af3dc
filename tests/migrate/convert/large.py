"""Checkpoints of real size that take no disk: weights are holes, but for a mark in each that tells it apart."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path

WIDTHS = {"BF16": 2, "F32": 4}
Types = Mapping[str, tuple[str, tuple[int, ...]]]


def seven_billion() -> Types:
    """LLaMA-2 7B as its layout has it, 13.5 GB (Touvron et al. 2023, table 2: 32 layers, 4096, 11008)."""
    return _llama(layers=32, width=4096, inner=11008, kv=4096, vocabulary=32000)


def ten_billion() -> Types:
    """A LLaMA of 20.7 GB: 48 layers of 4096, inner width 11008."""
    return _llama(layers=50, width=4096, inner=11008, kv=4096, vocabulary=32000)


def _llama(*, layers: int, width: int, inner: int, kv: int, vocabulary: int) -> Types:
    shapes: dict[str, tuple[int, ...]] = {"embed": (vocabulary, width)}
    for layer in range(layers):
        shapes |= {
            f"layers.{layer}.norm1": (width,), f"layers.{layer}.q": (width, width), f"layers.{layer}.k": (kv, width),
            f"layers.{layer}.v": (kv, width), f"layers.{layer}.o": (width, width), f"layers.{layer}.norm2": (width,),
            f"layers.{layer}.gate": (inner, width), f"layers.{layer}.up": (inner, width),
            f"layers.{layer}.down": (width, inner),
        }  # fmt: skip
    shapes |= {"norm": (width,), "head": (vocabulary, width)}
    return {key: ("BF16", shape) for key, shape in shapes.items()}


def nbytes(types: Types) -> int:
    return sum(WIDTHS[dtype] * prod(shape) for dtype, shape in types.values())


def write(folder: Path, types: Types, shards: int) -> Path:
    """One file, or several with their index."""
    folder.mkdir(parents=True)
    keys = list(types)
    names = [f"model-{n:05d}-of-{shards:05d}.safetensors" for n in range(1, shards + 1)]
    placed = {
        key: "model.safetensors" if shards == 1 else names[at * shards // len(keys)] for at, key in enumerate(keys)
    }
    for name in dict.fromkeys(placed.values()):
        _file(folder / name, {key: types[key] for key in keys if placed[key] == name})
    if shards > 1:
        index = {"metadata": {"total_size": nbytes(types)}, "weight_map": placed}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text('{"model_type": "any"}')
    return folder


def _file(path: Path, types: Types) -> None:
    header, marks, at = dict[str, object](), dict[int, bytes](), 0
    for key, (dtype, shape) in types.items():
        size = WIDTHS[dtype] * prod(shape)
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        marks[at] = key.encode()[: size & ~1]
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        begin = file.tell()
        for start, mark in marks.items():
            file.seek(begin + start)
            file.write(mark)
        file.truncate(begin + at)
