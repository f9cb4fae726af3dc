"""Pair quantised weights with their companions, so that neither is missing, unexpected or of the wrong shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from blockaudit.checkpoint.quantization import Scheme, quantization_scheme
from blockaudit.records.binding import Misshapen, Quantised
from blockaudit.records.checkpoint import TensorHeader

# Schemes whose weight keeps its name and its logical shape.
_PLAIN = ("none", "fp8-", "int8-", "bitsandbytes-8bit")


def examine(
    tensors: Mapping[str, TensorHeader], config: Mapping[str, Any] | None
) -> tuple[Quantised, dict[str, str], set[str]]:
    """The scheme; logical key -> stored key of packed weights; and the companion keys that are claimed by it."""
    scheme = quantization_scheme(tensors, config)
    if scheme.name == "none":
        return Quantised("none", scheme.declared, scheme.declared_method, "", packed=False), {}, set()
    packed = not scheme.name.startswith(_PLAIN)
    logical: dict[str, str] = {}
    claimed: set[str] = set()
    for key in scheme.weights:
        stem, _, last = key.rpartition(".")
        if last != "weight":
            logical[f"{stem}.weight" if last in ("qweight", "weight_packed") else key] = key
    below = scheme.name == "bitsandbytes-4bit"
    for key in scheme.weights:
        stem = f"{key}." if below else key[: key.rindex(".") + 1] if "." in key else ""
        for suffix in scheme.companions:
            companion = stem + suffix
            if companion in tensors:
                claimed.add(companion)
    bad = tuple(_bad_scales(tensors, scheme, config)) if scheme.name == "fp8-block" else ()
    quantised = Quantised(
        scheme.name, scheme.declared, scheme.declared_method, scheme.detected_from, packed,
        scheme.unpaired, scheme.orphans, bad,
    )  # fmt: skip
    return quantised, logical, claimed | set(scheme.orphans)


def _bad_scales(
    tensors: Mapping[str, TensorHeader], scheme: Scheme, config: Mapping[str, Any] | None
) -> list[Misshapen]:
    """Block scales hold one number per block: ceil(rows / block) x ceil(columns / block)."""
    block = _block_size(config)
    if block is None:
        return []
    high, wide = block
    bad: list[Misshapen] = []
    for key in scheme.weights:
        scale = tensors.get(f"{key}_scale_inv") or tensors.get(f"{key}_scale")
        shape = tensors[key].shape
        if scale is None or len(shape) != 2:
            continue
        expected = (-(-shape[0] // high), -(-shape[1] // wide))
        if scale.shape != expected:
            name = f"{key}_scale_inv" if f"{key}_scale_inv" in tensors else f"{key}_scale"
            bad.append(Misshapen(name, expected, scale.shape))
    return bad


def _block_size(config: Mapping[str, Any] | None) -> tuple[int, int] | None:
    given: Any = (config or {}).get("quantization_config")
    size: Any = cast("dict[str, Any]", given).get("weight_block_size") if isinstance(given, dict) else None
    if isinstance(size, list):
        numbers = cast("list[Any]", size)
        if len(numbers) == 2 and all(type(n) is int and n > 0 for n in numbers):
            return numbers[0], numbers[1]
    return None
