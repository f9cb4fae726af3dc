"""compressed-tensors: which of config's groups speaks of a module, and weights packed under `weight_packed`.

pack-quantized: weight_packed I32 [out, in * bits / 32], weight_scale [out, groups], weight_shape, and where asked
weight_zero_point (packed along the outputs) and weight_g_idx. nvfp4 and mxfp4: two numbers a byte, no weight_shape.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from blockaudit.checkpoint.quantization.declared import Declared
from blockaudit.checkpoint.quantization.reader import CONFIG, Reader, ceil
from blockaudit.checkpoint.quantization.skips import is_class, matches
from blockaudit.records.checkpoint import DTYPE_BITS
from blockaudit.records.quantised import Shape


class Weights(msgspec.Struct, frozen=True):
    """The `weights` of one config group: None, or empty, where it does not say."""

    bits: int | None = None
    kind: str = ""  # int | float
    strategy: str = ""  # tensor | channel | group | block | tensor_group
    group: int | None = None
    block: tuple[int, int] | None = None
    symmetric: bool | None = None
    ordered: bool = False


def weights_of(declared: Declared, module: str) -> Weights | None:
    """What is declared for the weight of a module; None where that cannot be said."""
    groups: Any = declared.raw.get("config_groups")
    if not isinstance(groups, dict):
        return None
    found = [_weights(g) for g in cast("dict[str, Any]", groups).values() if _targets(g, module)]
    return found[0] if len(found) == 1 else None


def _targets(group: Any, module: str) -> bool:
    """Whether a group may speak of a module: by its name, or by a class, which keys do not show."""
    given = cast("dict[str, Any]", group).get("targets") if isinstance(group, dict) else None
    for target in cast("list[Any]", given) if isinstance(given, list) else ():
        if not isinstance(target, str):
            continue
        if target.startswith("re:"):
            if matches(target[3:], module) is not False:
                return True
        elif target == module or is_class(target):
            return True
    return False


def _weights(group: Any) -> Weights | None:
    given = cast("dict[str, Any]", group).get("weights")
    if not isinstance(given, dict):
        return None
    raw = cast("dict[str, Any]", given)
    block: Any = raw.get("block_structure")
    bits, size, strategy = raw.get("num_bits"), raw.get("group_size"), raw.get("strategy")
    size = size if type(size) is int else None
    implied = "tensor" if size is None else ("group" if size > 0 else "channel")
    return Weights(
        bits if type(bits) is int else None,
        str(raw.get("type") or "int"),
        strategy if isinstance(strategy, str) else implied,
        size if size is not None and size > 0 else None,
        pair(block),
        raw.get("symmetric") is not False,
        raw.get("actorder") == "group",
    )


def pair(given: Any) -> tuple[int, int] | None:
    """Two whole numbers above zero, as the sizes of a block."""
    sizes = cast("list[Any]", given) if isinstance(given, list) else []
    ok = len(sizes) == 2 and all(type(n) is int and n > 0 for n in sizes)
    return (sizes[0], sizes[1]) if ok else None


def read(reader: Reader) -> None:
    """Every `weight_packed`."""
    keys = reader.groups.get("weight_packed", ())
    reader.ahead(f"{key.removesuffix('packed')}shape" for key in keys)
    for key in keys:
        packed, stem = reader.tensors[key], key.removesuffix("_packed")
        if len(packed.shape) < 2:
            reader.misfit("weight_packed of the wrong shape", key, "[out, packed inputs]", list(packed.shape))
            reader.add(stem, key, "pack-quantized", None, None)
        elif packed.dtype == "U8":
            _halves(reader, key, stem)
        else:
            _words(reader, key, stem)


def _words(reader: Reader, key: str, stem: str) -> None:
    packed = reader.tensors[key]
    word, (*outer, columns) = DTYPE_BITS[packed.dtype], packed.shape
    said = weights_of(reader.declared, stem.rpartition(".")[0])
    reader.companion(key, f"{stem}_shape", (len(packed.shape),))
    shape, bits = reader.integers(f"{stem}_shape"), said.bits if said else None
    if shape is not None and (len(shape) != len(packed.shape) or shape[:-1] != tuple(outer) or not shape[-1]):
        reader.misfit("weight_shape that the packed numbers do not have", f"{stem}_shape", list(outer), list(shape))
        shape = None
    if shape is None and f"{stem}_shape" in reader.tensors and bits:
        shape = (*outer, columns * word // bits)
    seen = columns * word // shape[-1] if shape is not None else None
    if bits and shape is not None and columns not in _columns(shape[-1], bits, word):
        reader.misfit("weights of another width than declared", key, bits, seen, f"{CONFIG}.config_groups")
        bits = seen
    reader.add(stem, key, "pack-quantized", shape, bits or seen)
    scale_shapes = allowed(said, shape) if shape is not None else None
    reader.companion(key, f"{stem}_scale", *(scale_shapes or (None,)))
    _zeros(reader, key, stem, said, shape, bits or seen or 0, word)


def _columns(width: int, bits: int, word: int) -> set[int]:
    """Words of one row: packed without a gap, or so many whole numbers a word as older versions do."""
    return {ceil(width * bits, word), ceil(width, max(1, word // bits))}


def _zeros(
    reader: Reader, key: str, stem: str, said: Weights | None, shape: Shape | None, bits: int, word: int
) -> None:
    """Zero points, packed along the outputs, where the scheme is not symmetric; the order of inputs, where sorted."""
    scale = reader.tensors.get(f"{stem}_scale")
    if said is not None and said.symmetric:
        reader.surplus(f"{stem}_zero_point", "zero points of weights that are declared symmetric")
    elif shape is not None and scale is not None and scale.shape and bits:
        rows = _columns(shape[0], bits, word)
        needs = [(r, scale.shape[-1]) for r in sorted(rows)]
        reader.companion(key, f"{stem}_zero_point", *needs, required=said is not None)
    else:
        reader.companion(key, f"{stem}_zero_point", required=False)
    width = shape[-1] if shape is not None else None
    reader.companion(
        key, f"{stem}_g_idx", (width,) if width is not None else None, required=said is not None and said.ordered
    )


def _halves(reader: Reader, key: str, stem: str) -> None:
    """FP4 with a scale for 16 (nvfp4) or 32 (mxfp4) numbers, and for nvfp4 one for all of them."""
    *outer, columns = reader.tensors[key].shape
    shape, nv = (*outer, 2 * columns), f"{stem}_global_scale" in reader.tensors
    scale = reader.tensors.get(f"{stem}_scale")
    nv = nv or (scale is not None and scale.dtype == "F8_E4M3")
    said = weights_of(reader.declared, stem.rpartition(".")[0])
    size = (said.group if said else None) or (16 if nv else 32)
    reader.add(stem, key, "nvfp4" if nv else "mxfp4", shape, 4)
    reader.companion(key, f"{stem}_scale", (*outer, ceil(shape[-1], size)))
    reader.exponent(f"{stem}_scale")
    reader.companion(key, f"{stem}_global_scale", (1,), (), required=nv)


def allowed(said: Weights | None, shape: Shape) -> list[Shape] | None:
    """Shapes that the scales of a weight may have under a strategy; None where it does not decide them."""
    *outer, out, width = shape
    if said is None:
        return None
    if said.strategy == "channel":
        return [(*outer, out, 1), (*outer, out)]
    if said.strategy == "tensor":
        return [(1,), (), *([(*outer, 1, 1), tuple(outer)] if outer else [])]
    if said.strategy == "block" and said.block is not None:
        return [(*outer, ceil(out, said.block[0]), ceil(width, said.block[1]))]
    return [(*outer, out, ceil(width, said.group))] if said.group else None
