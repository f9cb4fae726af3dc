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
    # All weights of a scheme end in one and the same word.
    last = scheme.weights[0].rpartition(".")[2] if scheme.weights else "weight"
    if last != "weight":
        renamed = last in ("qweight", "weight_packed")
        logical = {(key[: -len(last)] + "weight" if renamed else key): key for key in scheme.weights}
    if scheme.name == "bitsandbytes-4bit":  # packed under its own name
        logical = {key: key for key in scheme.weights}
    bad = tuple(_bad_scales(tensors, scheme, config)) if scheme.name == "fp8-block" else ()
    quantised = Quantised(
        scheme.name, scheme.declared, scheme.declared_method, scheme.detected_from, packed,
        scheme.unpaired, scheme.orphans, bad,
    )  # fmt: skip
    return quantised, logical, {*scheme.companions, *scheme.orphans}


def _bad_scales(
    tensors: Mapping[str, TensorHeader], scheme: Scheme, config: Mapping[str, Any] | None
) -> list[Misshapen]:
    """Block scales hold one number per block: ceil(rows / block) x ceil(columns / block)."""
    block = _block_size(config)
    if block is None:
        return []
    high, wide = block
    bad: list[Misshapen] = []
    shown = scheme.detected_from
    for key in scheme.companions:
        weight = tensors.get(key[: -len(shown)] + "weight") if key.endswith(shown) else None
        if weight is None or len(weight.shape) != 2:
            continue
        expected = (-(-weight.shape[0] // high), -(-weight.shape[1] // wide))
        found = tensors[key].shape
        if found != expected:
            bad.append(Misshapen(key, expected, found))
    return bad


def _block_size(config: Mapping[str, Any] | None) -> tuple[int, int] | None:
    given: Any = (config or {}).get("quantization_config")
    size: Any = cast("dict[str, Any]", given).get("weight_block_size") if isinstance(given, dict) else None
    if isinstance(size, list):
        numbers = cast("list[Any]", size)
        if len(numbers) == 2 and all(type(n) is int and n > 0 for n in numbers):
            return numbers[0], numbers[1]
    return None
