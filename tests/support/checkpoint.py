"""Tiny checkpoints written with struct and json alone, and the ways in which tests spoil them.

A checkpoint in hand is two dictionaries, `tensors` and `config`; an *edit* is a function that changes them in place.
`family("llama", drop("*.q_proj.weight"), config(rms_norm_eps=1e-5))` is a builder: call it with a folder.
"""

from __future__ import annotations

import fnmatch
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

KEYS = Path(__file__).parent / "keys"
WIDTH = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1}
# Families whose norm multiplies by 1 + weight: their gains are trained about zero.
OFFSET_ONE = ("gemma", "gemma2", "gemma3_text", "nemotron")
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Tensor:
    """One tensor as it will be stored."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        assert len(self.data) == WIDTH[self.dtype] * int(np.prod(self.shape, dtype=int)), self


@dataclass
class Draft:
    """A checkpoint before it is written. `shards` splits it; `files` are further files of the folder."""

    tensors: dict[str, Tensor]
    config: dict[str, Any] | None
    shards: int = 1
    files: dict[str, bytes] = field(default_factory=dict)
    model_type: str = ""

    def like(self, *patterns: str) -> list[str]:
        """Keys that match one of the patterns (`*.q_proj.weight`); a pattern that matches none is a broken test."""
        for pattern in patterns:
            assert fnmatch.filter(self.tensors, pattern), f"no key like {pattern!r}"
        return [k for k in self.tensors if any(fnmatch.fnmatchcase(k, p) for p in patterns)]


Edit = Callable[[Draft], None]
Build = Callable[[Path], Path]


# -- values -----------------------------------------------------------------------------------------------------------


def normals(key: str, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Standard normal numbers that depend on the key alone."""
    return np.random.default_rng(zlib.crc32(key.encode())).standard_normal(tuple(shape))


def is_norm(key: str, shape: Sequence[int]) -> bool:
    return key.endswith(".weight") and (len(shape) == 1 or re.search(r"[qk]_norm\.weight$", key) is not None)


def trained(key: str, shape: Sequence[int], dtype: str = "F32", offset: float = 0) -> Tensor:
    """A tensor that looks trained: gains about one (or about zero, offset 1), everything else small; no two alike."""
    numbers = normals(key, shape) * 0.05
    return encoded(numbers + (1 - offset) if is_norm(key, shape) else numbers, dtype)


def encoded(numbers: Any, dtype: str = "F32") -> Tensor:
    """Numbers in a dtype of safetensors (bfloat16 and eight bit floats by truncation)."""
    array = np.asarray(numbers)
    if dtype == "BF16":
        data = (array.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    elif dtype.startswith("F8"):
        data = (np.abs(array) * 64).astype("u1").tobytes()
    else:
        kind = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I8": "i1", "U8": "u1"}[dtype]
        data = array.astype(kind).tobytes()
    return Tensor(dtype, array.shape, data)


# -- writing ----------------------------------------------------------------------------------------------------------


def header(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """A right header for tensors laid side by side."""
    made: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for key, tensor in tensors.items():
        made[key] = {
            "dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, at + len(tensor.data)],
        }  # fmt: skip
        at += len(tensor.data)
    return made


def safetensors(
    path: Path, tensors: Mapping[str, Tensor], spoil: Callable[[dict[str, Any]], None] | None = None
) -> Path:
    """One safetensors file; `spoil` may change its header first."""
    made = header(tensors)
    if spoil is not None:
        spoil(made)
    text = json.dumps(made).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t.data for t in tensors.values()))
    return path


def shard_name(i: int, of: int) -> str:
    return f"model-{i + 1:05d}-of-{of:05d}.safetensors"


def write(draft: Draft, folder: Path) -> Path:
    """The draft as a folder in the Hugging Face layout."""
    folder.mkdir(parents=True, exist_ok=True)
    if draft.config is not None:
        (folder / "config.json").write_text(json.dumps(draft.config, indent=1))
    if draft.shards == 1:
        safetensors(folder / "model.safetensors", draft.tensors)
    else:
        keys, weight_map = list(draft.tensors), dict[str, str]()
        for i in range(draft.shards):
            mine = keys[i :: draft.shards]
            safetensors(folder / shard_name(i, draft.shards), {k: draft.tensors[k] for k in mine})
            weight_map |= dict.fromkeys(mine, shard_name(i, draft.shards))
        total = sum(len(t.data) for t in draft.tensors.values())
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    for name, data in draft.files.items():
        (folder / name).write_bytes(data)
    return folder


# -- families ---------------------------------------------------------------------------------------------------------


@cache
def _recorded(name: str) -> tuple[dict[str, tuple[str, tuple[int, ...]]], str]:
    recorded = json.loads((KEYS / f"{name}.json").read_text())
    keys: dict[str, tuple[str, tuple[int, ...]]] = {}
    for folded, text in recorded["keys"].items():
        dtype, *sizes = text.split()
        keys |= dict.fromkeys(unfolded(folded), (dtype, tuple(map(int, sizes))))
    return keys, json.dumps(recorded["config"])


def unfolded(key: str) -> Iterator[str]:
    """`layers.{0-1}.weight` as its keys."""
    hit = re.search(r"\{(\d+)-(\d+)\}", key)
    if hit is None:
        yield key
        return
    for n in range(int(hit[1]), int(hit[2]) + 1):
        yield from unfolded(f"{key[: hit.start()]}{n}{key[hit.end() :]}")


def draft(name: str, *edits: Edit) -> Draft:
    """A recorded model (tests/support/keys) in hand."""
    keys, text = _recorded(name)
    settings = json.loads(text)
    offset = 1 if settings["model_type"] in OFFSET_ONE else 0
    tensors = {key: trained(key, shape, dtype, offset) for key, (dtype, shape) in keys.items()}
    made = Draft(tensors, settings, model_type=settings["model_type"])
    for edit in edits:
        edit(made)
    return made


def family(name: str, *edits: Edit) -> Build:
    """A builder: a recorded model with its edits, written into the folder that it is given."""
    return lambda folder: write(draft(name, *edits), folder)


def then(build: Build, *after: Callable[[Path], Any]) -> Build:
    """A builder whose files are spoilt after they are written."""

    def made(folder: Path) -> Path:
        source = build(folder)
        for step in after:
            step(folder)
        return source

    return made


# -- edits ------------------------------------------------------------------------------------------------------------


def config(**changes: Any) -> Edit:
    """Set config fields."""

    def edit(d: Draft) -> None:
        assert d.config is not None
        d.config |= changes

    return edit


def unset(*names: str) -> Edit:
    """Remove config fields."""

    def edit(d: Draft) -> None:
        assert d.config is not None
        for name in names:
            del d.config[name]

    return edit


def no_config(d: Draft) -> None:
    d.config = None


def drop(*patterns: str) -> Edit:
    """Remove tensors."""

    def edit(d: Draft) -> None:
        for key in d.like(*patterns):
            del d.tensors[key]

    return edit


def add(shape: Sequence[int], *keys: str, dtype: str = "F32") -> Edit:
    """Add tensors of one shape (`layers.{0-1}.x` is both)."""

    def edit(d: Draft) -> None:
        for key in (k for folded in keys for k in unfolded(folded)):
            assert key not in d.tensors, key
            d.tensors[key] = trained(key, shape, dtype)

    return edit


def put(key: str, numbers: Any, dtype: str = "F32") -> Edit:
    """Give a key these numbers."""

    def edit(d: Draft) -> None:
        d.tensors[key] = encoded(np.asarray(numbers), dtype)

    return edit


def fill(value: float, *patterns: str) -> Edit:
    """Make tensors constant."""

    def edit(d: Draft) -> None:
        for key in d.like(*patterns):
            d.tensors[key] = encoded(np.full(d.tensors[key].shape, value), d.tensors[key].dtype)

    return edit


def shift(by: float, *patterns: str) -> Edit:
    """Add a constant to float32 tensors."""

    def edit(d: Draft) -> None:
        for key in d.like(*patterns):
            t = d.tensors[key]
            d.tensors[key] = encoded(np.frombuffer(t.data, "<f4").reshape(t.shape) + by)

    return edit


def reshape(shape: Sequence[int], *patterns: str) -> Edit:
    """Other tensors of this shape under the same keys."""

    def edit(d: Draft) -> None:
        for key in d.like(*patterns):
            d.tensors[key] = trained(key, shape, d.tensors[key].dtype)

    return edit


def transpose(*patterns: str) -> Edit:
    def edit(d: Draft) -> None:
        for key in d.like(*patterns):
            t = d.tensors[key]
            d.tensors[key] = encoded(np.frombuffer(t.data, "<f4").reshape(t.shape).T)

    return edit


def cast(dtype: str, *patterns: str) -> Edit:
    """The same numbers in another dtype."""

    def edit(d: Draft) -> None:
        for key in d.like(*patterns):
            t = d.tensors[key]
            d.tensors[key] = encoded(np.frombuffer(t.data, "<f4").reshape(t.shape), dtype)

    return edit


def copy(source: str, target: str) -> Edit:
    """The bytes of one key under another too."""

    def edit(d: Draft) -> None:
        d.tensors[target] = d.tensors[source]

    return edit


def rename(old: str, new: str) -> Edit:
    """Every key by a regular expression; one that changes nothing is a broken test."""

    def edit(d: Draft) -> None:
        renamed = {re.sub(old, new, key): tensor for key, tensor in d.tensors.items()}
        assert renamed.keys() != d.tensors.keys(), old
        d.tensors = renamed

    return edit


def sharded(count: int) -> Edit:
    def edit(d: Draft) -> None:
        d.shards = count

    return edit


def file(name: str, text: str | bytes) -> Edit:
    """A further file in the folder."""

    def edit(d: Draft) -> None:
        d.files[name] = text.encode() if isinstance(text, str) else text

    return edit
