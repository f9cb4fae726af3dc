"""Tiny GGUF files, written by the package that owns the format."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from blockaudit.checkpoint.gguf.metadata import FIELDS
from blockaudit.checkpoint.gguf.tables import Names
from blockaudit.manifest.bind import bind
from blockaudit.manifest.load import library
from blockaudit.reconcile.expand import AXIS

SIZES = {
    "d_model": 8, "n_layers": 2, "n_heads": 2, "n_kv": 1, "d_head": 4, "d_ff": 12, "d_moe": 12, "n_experts": 4,
    "n_ctx": 16, "vocab": 16,
}  # fmt: skip
Change = Callable[["Draft"], Any]
DICE = np.random.default_rng(1)


@dataclass
class Draft:
    """A GGUF to be written: values without a prefix stand behind the name of the architecture."""

    architecture: str
    values: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)


def sizes(architecture: str, epsilon: str = "attention.layer_norm_rms_epsilon") -> Draft:
    return Draft(
        architecture,
        {
            "embedding_length": 8, "block_count": 2, "attention.head_count": 2, "attention.head_count_kv": 1,
            "attention.key_length": 4, "feed_forward_length": 12, "context_length": 16, epsilon: 1e-5,
        },
    )  # fmt: skip


def numbers(shape: Iterable[int], about: float = 0.0) -> np.ndarray:
    return (about + 0.02 * DICE.standard_normal(tuple(shape))).astype(np.float32)


def llama() -> Draft:
    """Two layers of LLaMA with a tied head, named as llama.cpp names them and by no table of ours."""
    made = sizes("llama")
    for layer in range(2):
        for name, shape in {
            "attn_q": (8, 8), "attn_k": (4, 8), "attn_v": (4, 8), "attn_output": (8, 8),
            "ffn_gate": (12, 8), "ffn_up": (12, 8), "ffn_down": (8, 12),
        }.items():  # fmt: skip
            made.tensors[f"blk.{layer}.{name}.weight"] = numbers(shape)
        for name in ("attn_norm", "ffn_norm"):
            made.tensors[f"blk.{layer}.{name}.weight"] = numbers((8,), 1.0)
    made.tensors["token_embd.weight"] = numbers((16, 8))
    made.tensors["output_norm.weight"] = numbers((8,), 1.0)
    return made


def family(architecture: str, model_type: str) -> Draft:
    """Any family of the library at its smallest, named by the package's tables."""
    manifest = library(model_type).manifest
    rms = manifest.norm.family == "rmsnorm"
    made = sizes(architecture, "attention.layer_norm_rms_epsilon" if rms else "attention.layer_norm_epsilon")
    config: dict[str, Any] = {"model_type": model_type}
    for symbol, size in SIZES.items():
        key = getattr(manifest.dims.get(symbol), "config", None)
        if key:
            config[key if isinstance(key, str) else key[0]] = size
    if "n_experts" in manifest.dims:
        made.values |= {"expert_count": 4, "expert_feed_forward_length": 12}
    bound, names = bind(manifest, config), Names(architecture)
    for name, value in bound.fields.items():
        key = next((keys[0] for ending, keys in FIELDS.items() if name.endswith(ending) and ending != ".epsilon"), "")
        if key and value.implied:
            made.values[key] = value.value if isinstance(value.value, bool) else 1.0
    for e in bound.expected:
        found = None if e.derived or e.optional or (e.tied and e.tied.value) else names.template(e.template)
        if found is None:
            continue
        shape = e.shape if e.layout == "out_in" else e.shape[::-1]
        counts = [dict(e.counts)[axis] for axis in AXIS.findall(e.template) if axis != "l"]
        about = 1.0 if e.what == "norm" and e.role == "weight" else 0.0
        for layer in e.layers or (0,):
            made.tensors[found[0].replace("{l}", str(layer))] = numbers((*counts, *map(int, shape)), about)  # type: ignore[arg-type]
    return made


def write(path: Path, it: Draft, *, parts: int = 0) -> Path:
    """Write it to `path`; with `parts`, as files of so many tensors each. Returns the file, or the folder of parts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, it.architecture, split_max_tensors=parts)
    for key, value in it.values.items():
        name = key if "." in key and key.split(".")[0] in ("general", "tokenizer") else f"{it.architecture}.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    writer.add_array("tokenizer.ggml.tokens", [f"<{i}>" for i in range(16)])
    for key, tensor in it.tensors.items():
        writer.add_tensor(key, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.parent if parts else path


def built(*changes: Change, start: Callable[[], Draft] = llama) -> Callable[[Path], Path]:
    """A builder of a folder with one GGUF, changed before it is written."""

    def build(folder: Path) -> Path:
        it = start()
        for change in changes:
            change(it)
        write(folder / "model.gguf", it)
        return folder

    return build
