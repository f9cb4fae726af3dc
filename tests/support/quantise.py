"""Quantised checkpoints written from the public formats: shapes and dtypes are right, the numbers are any.

GPTQ and AWQ as their packers write them (neither installs without CUDA); the rest as the libraries do that own them,
which tests/soak/test_quantised_libraries.py asks themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tests.support.checkpoint import Build, Draft, Edit, Tensor, config, family, trained

PROJECTIONS = "*_proj.weight"
_WIDTH = {"I32": 4, "I64": 8, "F16": 2, "F32": 4, "BF16": 2, "U8": 1, "I8": 1, "F8_E4M3": 1}
Parts = dict[str, Tensor]


def wide(d: Draft) -> None:
    """Eight times as wide along every axis: hidden 64, ff 96, kv 32, vocabulary 128; no two axes alike but q and o."""
    d.tensors = {k: trained(k, tuple(8 * n for n in t.shape), "BF16") for k, t in d.tensors.items()}
    config(hidden_size=64, intermediate_size=96, vocab_size=128, head_dim=32, dtype="bfloat16")(d)


def llama(*edits: Edit) -> Build:
    """The wide LLaMA with its edits."""
    return family("llama", wide, *edits)


def part(dtype: str, *shape: int) -> Tensor:
    """Numbers that are finite in every dtype."""
    return Tensor(dtype, shape, bytes(prod(shape) * _WIDTH[dtype]))


def ints(*values: int) -> Tensor:
    return Tensor("I64", (len(values),), np.array(values, "<i8").tobytes())


def text(given: dict[str, Any]) -> Tensor:
    raw = json.dumps(given).encode()
    return Tensor("U8", (len(raw),), raw)


def packs(declared: dict[str, Any], pack: Callable[[str, int, int], Parts], *patterns: str) -> Edit:
    """Every projection [out, in] in the parts that `pack` gives for it, and config with its declaration."""

    def edit(d: Draft) -> None:
        for key in d.like(*(patterns or (PROJECTIONS,))):
            out, width = d.tensors.pop(key).shape
            d.tensors |= pack(key.removesuffix("weight"), out, width)
        config(quantization_config=declared)(d)

    return edit


def gptq(bits: int = 4, group: int = 32, **more: Any) -> Edit:
    """Inputs packed; `g_idx` beside them, as AutoGPTQ and gptqmodel write."""

    def pack(stem: str, out: int, width: int) -> Parts:
        groups = 1 if group < 0 else width // group
        return {
            f"{stem}qweight": part("I32", width * bits // 32, out),
            f"{stem}qzeros": part("I32", groups, out * bits // 32),
            f"{stem}scales": part("F16", groups, out),
            f"{stem}g_idx": part("I32", width),
        }

    said = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": True}
    return packs({**said, **more}, pack)


def awq(bits: int = 4, group: int = 32, **more: Any) -> Edit:
    """Outputs packed, as AutoAWQ's GEMM writes."""

    def pack(stem: str, out: int, width: int) -> Parts:
        return {
            f"{stem}qweight": part("I32", width, out * bits // 32),
            f"{stem}qzeros": part("I32", width // group, out * bits // 32),
            f"{stem}scales": part("F16", width // group, out),
        }

    said = {"quant_method": "awq", "bits": bits, "group_size": group, "zero_point": True, "version": "gemm"}
    return packs({**said, **more}, pack)


def bnb4(nested: bool = False, state: dict[str, Any] | None = None, **more: Any) -> Edit:
    """nf4: two numbers a byte in one column, blocks of 64; `nested` quantises the block maxima in blocks of 256."""

    def pack(stem: str, out: int, width: int) -> Parts:
        key, blocks = f"{stem}weight", out * width // 64
        said = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [out, width]}
        said |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.1} if nested else {}
        parts = {
            key: part("U8", out * width // 2, 1),
            f"{key}.absmax": part("U8" if nested else "F32", blocks),
            f"{key}.quant_map": part("F32", 16),
            f"{key}.quant_state.bitsandbytes__nf4": text({**said, **(state or {})}),
        }
        if nested:
            parts[f"{key}.nested_absmax"] = part("F32", -(-blocks // 256))
            parts[f"{key}.nested_quant_map"] = part("F32", 256)
        return parts

    said = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    return packs({**said, "bnb_4bit_use_double_quant": nested, **more}, pack)


def bnb8(**more: Any) -> Edit:
    def pack(stem: str, out: int, width: int) -> Parts:
        return {
            f"{stem}weight": part("I8", out, width),
            f"{stem}SCB": part("F32", out),
            f"{stem}weight_format": part("U8"),
        }

    return packs({"quant_method": "bitsandbytes", "load_in_8bit": True, **more}, pack)


def fp8(
    suffix: str, scale: Callable[[int, int], tuple[int, ...]], *, patterns: Sequence[str] = (), **declared: Any
) -> Edit:
    """FP8 with a scale of any spelling and shape beside it."""

    def pack(stem: str, out: int, width: int) -> Parts:
        return {f"{stem}weight": part("F8_E4M3", out, width), f"{stem}{suffix}": part("F32", *scale(out, width))}

    return packs({"quant_method": "fp8", **declared}, pack, *patterns)


def blocks(high: int, wide: int) -> Callable[[int, int], tuple[int, ...]]:
    return lambda out, width: (-(-out // high), -(-width // wide))


def group(**weights: Any) -> dict[str, Any]:
    """compressed-tensors' declaration of one group for every linear layer."""
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


def compressed(bits: int = 4, size: int = 32, *, symmetric: bool = True, **more: Any) -> Edit:
    """pack-quantized."""

    def pack(stem: str, out: int, width: int) -> Parts:
        parts = {
            f"{stem}weight_packed": part("I32", out, width * bits // 32),
            f"{stem}weight_scale": part("BF16", out, width // size),
            f"{stem}weight_shape": ints(out, width),
        }
        if not symmetric:
            parts[f"{stem}weight_zero_point"] = part("I32", out * bits // 32, width // size)
        return parts

    said = group(num_bits=bits, type="int", symmetric=symmetric, strategy="group", group_size=size)
    return packs({**said, "format": "pack-quantized", **more}, pack)
