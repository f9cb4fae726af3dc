"""Which quantisation scheme the keys and dtypes of a checkpoint show, and which one its config declares."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from blockaudit.checkpoint.files import gc_paused
from blockaudit.records.checkpoint import TensorHeader

Tensors = Mapping[str, TensorHeader]


class Scheme(msgspec.Struct, frozen=True):
    """A quantisation scheme, as stored.

    `name`: none, fp8-block, fp8-channel, fp8-tensor, fp8-unscaled, int8-channel, packed (compressed-tensors), mxfp4,
    gptq, awq, bitsandbytes-8bit, bitsandbytes-4bit. `declared_method` is config's quant_method as written, empty where
    there is none; `declared` says whether config has a quantization_config at all. `weights` are the quantised weights,
    `companions` the keys that the scheme puts beside one of them (`weight_scale_inv`) or below it (`weight.absmax`).
    `unpaired` are weights without the companion that they need, `orphans` are scales without a weight.
    """

    name: str
    declared: bool
    declared_method: str
    detected_from: str
    weights: tuple[str, ...] = ()
    companions: tuple[str, ...] = ()
    unpaired: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()


class _Family(msgspec.Struct, frozen=True):
    """How one scheme is spelt: the last segment of the weight, what may lie beside it, and what must."""

    weight: str
    companions: tuple[str, ...]
    needed: tuple[str, ...]  # any one of these
    below: bool = False  # companions are weight.absmax and not absmax beside weight


_SCALES = ("weight_scale_inv", "weight_scale", "scale", "input_scale", "weight_zero_point", "activation_scale")
_ANY_SCALE = ("weight_scale_inv", "weight_scale", "scale")
_PACKED = ("weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")
_BNB4 = (
    "absmax",
    "quant_map",
    "nested_absmax",
    "nested_quant_map",
    "quant_state.bitsandbytes__nf4",
    "quant_state.bitsandbytes__fp4",
)
_GPTQ = _Family("qweight", ("qzeros", "scales", "g_idx"), ("scales",))
_BNB8 = _Family("weight", ("SCB", "weight_format"), ("SCB",))
_SCALED = _Family("weight", _SCALES, _ANY_SCALE)
_QWEIGHT8 = _Family("qweight", ("scale", "scales", "zero_point"), ("scale", "scales"))
# Every last segment that a scheme may put beside `weight`, or in its place.
BESIDE = frozenset(
    {"qweight", "weight_packed", *_PACKED}.union(*(f.companions for f in (_GPTQ, _BNB8, _SCALED, _QWEIGHT8)))
)


def _declared(config: Mapping[str, Any] | None) -> tuple[bool, str]:
    given: Any = (config or {}).get("quantization_config")
    if not isinstance(given, dict):
        return False, ""
    method = cast("dict[str, Any]", given).get("quant_method")
    return True, method if isinstance(method, str) else ""


Groups = Mapping[str, list[str]]


def _group(tensors: Tensors) -> Groups:
    """Last segment of the keys -> the keys that end in it."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for key in tensors:
        groups[key.rpartition(".")[2]].append(key)
    return groups


def _float8(tensors: Tensors) -> str:
    return next(
        (key for key, tensor in tensors.items() if tensor.dtype.startswith("F8_E") and tensor.dtype != "F8_E8M0"), ""
    )


def _scale_kind(scale: TensorHeader, prefix: str) -> str:
    """Whether a scale is one number per tensor, per output row, or per block."""
    if all(size == 1 for size in scale.shape):
        return f"{prefix}-tensor"
    blocks = sum(size > 1 for size in scale.shape) > 1
    return f"{prefix}-block" if blocks else f"{prefix}-channel"


def _qweight(tensors: Tensors, groups: Groups, method: str) -> tuple[str, _Family]:
    key = groups["qweight"][0]
    packed = tensors[key]
    if packed.dtype in ("I8", "U8") or "qzeros" not in groups:
        return "int8-channel", _QWEIGHT8
    if method in ("gptq", "awq"):
        return method, _GPTQ
    scales = tensors.get(key[: -len("qweight")] + "scales")
    # GPTQ packs eight inputs into one row, so that its columns are the outputs; AWQ packs eight outputs.
    wide = scales is not None and scales.shape and packed.shape and packed.shape[-1] != scales.shape[-1]
    return ("awq" if wide and "g_idx" not in groups else "gptq"), _GPTQ


def _scaled(tensors: Tensors, groups: Groups) -> tuple[str, _Family, str] | None:
    """Weights with a scale beside them: FP8, or INT8 per channel."""
    if "weight_scale_inv" in groups:
        return "fp8-block", _SCALED, "weight_scale_inv"
    float8 = _float8(tensors)
    shown = "weight_scale" if "weight_scale" in groups or not float8 else "scale"
    if shown in groups:
        return _scale_kind(tensors[groups[shown][0]], "fp8" if float8 else "int8"), _SCALED, shown
    return ("fp8-unscaled", _SCALED, tensors[float8].dtype) if float8 else None


def _detect(tensors: Tensors, groups: Groups, method: str) -> tuple[str, _Family, str] | None:
    """(scheme, its spelling, what showed it), or None for plain weights."""
    if "qweight" in groups:
        return (*_qweight(tensors, groups, method), "qweight")
    if "SCB" in groups:
        return "bitsandbytes-8bit", _BNB8, "SCB"
    if "absmax" in groups or "quant_map" in groups:
        return "bitsandbytes-4bit", _Family("weight", _BNB4, ("absmax",), below=True), "absmax"
    if "weight_packed" in groups:
        return "packed", _Family("weight_packed", _PACKED, ("weight_scale",)), "weight_packed"
    blocks = next((s for s in groups if s.endswith("_blocks") and s[:-7] + "_scales" in groups), "")
    if blocks:
        return "mxfp4", _Family(blocks, (blocks[:-7] + "_scales",), (blocks[:-7] + "_scales",)), blocks
    return _scaled(tensors, groups)


def _kinds(name: str) -> tuple[str, ...]:
    """Prefixes of the dtypes that tell a quantised weight from one that the scheme left out."""
    if name.startswith("fp8"):
        return ("F8_E",)
    return ("I8", "U8") if name.startswith(("int8", "bitsandbytes")) else ("",)


def _paired(groups: Groups, weights: list[str], family: _Family) -> tuple[list[str], list[str], list[str]]:
    """Companions that stand beside a weight, weights that lack what they need, and scales whose weight is not there."""
    cut = None if family.below else -len(family.weight)
    dot = "." if family.below else ""
    stems = {key[:cut] + dot for key in weights}
    beside: list[str] = []
    orphans: list[str] = []
    scaled: set[str] = set()
    for suffix in family.companions:
        length = len(suffix)
        keys = [key for key in groups.get(suffix.rpartition(".")[2], ()) if key.endswith(suffix)]
        found = {key[:-length] for key in keys}
        if suffix in family.needed:
            scaled |= found
        if found <= stems:
            beside += keys
            continue
        beside += (key for key in keys if key[:-length] in stems)
        # A bare `scale` may as well be the gain of a norm.
        if suffix in family.needed and suffix != "scale":
            orphans += (key for key in keys if key[:-length] not in stems)
    unpaired = [] if scaled >= stems else [key for key in weights if key[:cut] + dot not in scaled]
    return beside, unpaired, orphans


def quantization_scheme(tensors: Tensors, config: Mapping[str, Any] | None) -> Scheme:
    """The scheme that the stored keys show; what config declares is kept beside it, and the two may disagree."""
    declared, method = _declared(config)
    with gc_paused():
        groups = _group(tensors)
        found = _detect(tensors, groups, method)
        if found is None:
            return Scheme("none", declared, method, "")
        name, family, shown = found
        kinds = _kinds(name)
        weights = [key for key in groups.get(family.weight, ()) if tensors[key].dtype.startswith(kinds)]
        beside, unpaired, orphans = _paired(groups, weights, family)
    if not weights and name.startswith("int8"):
        return Scheme("none", declared, method, "")
    return Scheme(name, declared, method, shown, tuple(weights), tuple(beside), tuple(unpaired), tuple(orphans))
