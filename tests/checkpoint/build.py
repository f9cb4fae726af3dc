"""Checkpoints made by hand, byte by byte: no library is asked to write what no library would write."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

from blockaudit.checkpoint.source import open_checkpoint
from blockaudit.records.checkpoint import Checkpoint, Fault

WIDTH = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I8": 1, "U8": 1, "I64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "I32": 4}

Shape = tuple[int, ...]


def size(dtype: str, shape: Shape) -> int:
    n = WIDTH[dtype]
    for d in shape:
        n *= d
    return n


def header(tensors: dict[str, tuple[str, Shape]], metadata: dict[str, str] | None = None) -> tuple[dict[str, Any], int]:
    """A right header for tensors laid side by side, and the bytes that its data section has."""
    made: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for key, (dtype, shape) in tensors.items():
        end = at + size(dtype, shape)
        made[key] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    return made, at


def raw_file(path: Path, text: bytes, data: bytes | int) -> Path:
    """A safetensors file of any header text and data, right or wrong."""
    body = bytes(data) if isinstance(data, int) else data
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def safetensors(path: Path, tensors: dict[str, tuple[str, Shape]], data: bytes | None = None) -> Path:
    made, end = header(tensors, {"format": "pt"})
    return raw_file(path, json.dumps(made).encode(), end if data is None else data)


def values(path: Path, tensors: dict[str, tuple[str, Shape, bytes]]) -> Path:
    return safetensors(
        path, {k: (d, s) for k, (d, s, _) in tensors.items()}, b"".join(b for _, _, b in tensors.values())
    )


def index(
    folder: Path, weight_map: dict[str, str], total: int | None, name: str = "model.safetensors.index.json"
) -> Path:
    document: dict[str, Any] = {"metadata": {"total_size": total}} if total is not None else {}
    path = folder / name
    path.write_text(json.dumps({**document, "weight_map": weight_map}))
    return path


def sharded(folder: Path) -> Path:
    """Two shards of one 8 byte tensor each, and a right index: total 16 bytes."""
    safetensors(folder / "model-00001-of-00002.safetensors", {"a": ("F32", (2,))})
    safetensors(folder / "model-00002-of-00002.safetensors", {"b": ("F32", (2,))})
    index(folder, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}, 16)
    return folder


def torch_zip(path: Path, pickled: bytes, storages: dict[str, bytes] | None = None, prefix: str = "archive") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{prefix}/data.pkl", pickled)
        archive.writestr(f"{prefix}/byteorder", "little")
        for key, data in (storages or {}).items():
            archive.writestr(f"{prefix}/data/{key}", data)
    return path


def opened(path: Path) -> Checkpoint:
    return open_checkpoint(str(path))


def rules(ckpt: Checkpoint) -> list[str]:
    return [fault.rule for fault in ckpt.faults]


def only(ckpt: Checkpoint) -> Fault:
    """The one fault of a checkpoint that should have exactly one."""
    assert len(ckpt.faults) == 1, ckpt.faults
    return ckpt.faults[0]
