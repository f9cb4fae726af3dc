"""FP8 and INT8 weights that keep name and shape, with a scale beside them: for all, for each row, or for each block.

The scale is spelt `weight_scale_inv` (DeepSeek, transformers), `weight_scale` (compressed-tensors, vLLM, fbgemm) or
`scale` (DeepSeek's own files). What multiplies is the same in each: `_inv` says how it was computed.
"""

from __future__ import annotations

from blockaudit.checkpoint.quantization.compressed import Weights, allowed, pair, weights_of
from blockaudit.checkpoint.quantization.reader import CONFIG, HEADERS, Reader, ceil
from blockaudit.records.checkpoint import TensorHeader
from blockaudit.records.quantised import Shape

_SCALES = ("_scale_inv", "_scale")
_BESIDE = ("scale", "qscale_weight")
# Tensors of a quantised layer that are no scale of its weight.
ACTIVATIONS = (
    "input_scale", "activation_scale", "output_scale", "input_global_scale", "input_zero_point", "k_scale", "v_scale",
    "q_scale", "k_zero_point", "v_zero_point",
)  # fmt: skip
# transformers' blocks where a `fp8` config does not name their size; other loaders read one scale for all.
_BLOCK = (128, 128)


def is_float8(dtype: str) -> bool:
    """Whether numbers of this dtype are weights: E8M0 holds exponents alone, and is for scales."""
    return dtype.startswith("F8_E") and dtype != "F8_E8M0"


def read(reader: Reader) -> None:
    """Every weight of eight bits that no other scheme has claimed."""
    for key, header in reader.tensors.items():
        if key in reader.claimed or not header.shape or key.endswith(("scale", "_scale_inv", "scale_2")):
            continue
        if is_float8(header.dtype):
            _weight(reader, key, header, "fp8")
        elif header.dtype in ("I8", "U8") and f"{key}_scale" in reader.tensors:
            _weight(reader, key, header, "int8") if header.dtype == "I8" else _halves(reader, key, header)
    _plain_int8(reader)


def _scale_key(reader: Reader, key: str) -> str | None:
    stem = key.rpartition(".")[0]
    keys = [f"{key}{s}" for s in _SCALES] + [f"{stem}.{s}" for s in _BESIDE]
    found = [k for k in keys if k in reader.tensors]
    for other in found[1:]:
        if other != f"{stem}.scale":  # which may as well be the gain of a norm
            reader.surplus(other, "second scales of one weight", HEADERS)
    return found[0] if found else None


def _weight(reader: Reader, key: str, header: TensorHeader, prefix: str) -> None:
    module, scale_key = key.rpartition(".")[0], _scale_key(reader, key)
    if scale_key is None:
        reader.add(key, key, f"{prefix}-unscaled", header.shape, 8, header.dtype)
        reader.misfit("quantised weights without a scale", key, f"{key}_scale_inv or _scale", None)
        return
    scale, said = reader.tensors[scale_key].shape, weights_of(reader.declared, module)
    kind, what, needs, evidence = _expected(reader, header.shape, scale, said)
    reader.add(key, key, f"{prefix}-{kind}", header.shape, 8, scale_key.rpartition(".")[2])
    reader.exponent(scale_key)
    reader.companion(key, scale_key, *(needs or (None,)), what=what, evidence=evidence)
    if needs is None and kind == "block" and not _divides(scale, header.shape):
        reader.misfit("block scales of the wrong shape", scale_key, "one for each block", list(scale))
    if said is not None and said.kind != ("float" if prefix == "fp8" else "int"):
        reader.misfit("weights of another kind than declared", key, said.kind, header.dtype, f"{CONFIG}.config_groups")
    _zeros(reader, key, said, needs or [scale])


def _expected(
    reader: Reader, shape: Shape, scale: Shape, said: Weights | None
) -> tuple[str, str, list[Shape] | None, str]:
    """What kind of scale is stored, what to call it, the shapes that it may have, and what says so."""
    # Thousands of experts have one shape: where one declaration is for all, it is worked out once.
    known = reader.expected.get((shape, scale)) if said is None else None
    if known is None:
        kind = _kind(scale, shape)
        known = (kind, f"{_declared_kind(reader, said) or kind} scales", *_needs(reader, shape, said))
        if said is None:
            reader.expected[shape, scale] = known
    return known


def _zeros(reader: Reader, key: str, said: Weights | None, needs: list[Shape]) -> None:
    """Zero points are of the shape of the scales."""
    zeros = f"{key}_zero_point"
    if said is not None and said.symmetric:
        reader.surplus(zeros, "zero points of weights that are declared symmetric")
    else:
        reader.companion(key, zeros, *needs, required=said is not None)


def _kind(scale: Shape, shape: Shape) -> str:
    """Whether a scale is one number per tensor, per output row, or per block."""
    if all(size == 1 for size in scale):
        return "tensor"
    # Experts stacked in one tensor have a matrix of scales each.
    return "block" if len(scale) > 1 and scale[-1] > 1 and len(scale) >= len(shape) else "channel"


def _declared_kind(reader: Reader, said: Weights | None) -> str:
    if said is not None:
        return said.strategy
    return "block" if pair(reader.declared.raw.get("weight_block_size")) else ""


def _needs(reader: Reader, shape: Shape, said: Weights | None) -> tuple[list[Shape] | None, str]:
    """Shapes that the scales may have, and what says so."""
    if len(shape) < 2:
        return None, HEADERS
    if said is not None:
        return allowed(said, shape), f"{CONFIG}.config_groups"
    *outer, out, width = shape
    raw, method = reader.declared.raw, reader.declared.method
    tensor: list[Shape] = [(), (1,), (*outer, 1, 1)]
    if (block := pair(raw.get("weight_block_size"))) is not None:
        return [(*outer, ceil(out, block[0]), ceil(width, block[1]))], f"{CONFIG}.weight_block_size"
    if method == "fbgemm_fp8":
        return [(*outer, out, 1), (*outer, out)], f"{CONFIG}.quant_method"
    if method == "fp8":
        usual = (*outer, ceil(out, _BLOCK[0]), ceil(width, _BLOCK[1]))
        return [usual, *tensor, (*outer, out, 1), (*outer, out)], f"{CONFIG}: no weight_block_size"
    return None, HEADERS


def _divides(scale: Shape, shape: Shape) -> bool:
    """Whether some block size gives so many scales along every axis."""
    return len(scale) == len(shape) and all(
        0 < s <= w and ceil(w, ceil(w, s)) == s for s, w in zip(scale, shape, strict=True)
    )


def _halves(reader: Reader, key: str, header: TensorHeader) -> None:
    """NVFP4 as ModelOpt stores it: two numbers a byte under the weight's own name, a scale for each 16."""
    *outer, columns = header.shape
    size = reader.declared.number("group_size") or 16
    reader.add(key, key, "nvfp4", (*outer, 2 * columns), 4, "weight_scale")
    reader.companion(key, f"{key}_scale", (*outer, ceil(2 * columns, size)))
    reader.companion(key, f"{key}_scale_2", (), (1,))


def _plain_int8(reader: Reader) -> None:
    """`X.qweight` of eight bits with `X.scale`: containers that no library owns, and no quant_method names."""
    for key in reader.groups.get("qweight", ()):
        header, stem = reader.tensors[key], key.removesuffix(".qweight")
        if key in reader.claimed or header.dtype not in ("I8", "U8"):
            continue
        name = stem if stem.endswith("weight") else f"{stem}.weight"
        reader.add(name, key, "qweight-int8", header.shape, 8)
        scale = next((k for k in (f"{stem}.scale", f"{stem}.scales") if k in reader.tensors), f"{stem}.scale")
        rows = (*header.shape[:1], *(1 for _ in header.shape[1:]))
        reader.companion(key, scale, rows, rows[:1], (1,), (), what="scales")
        reader.companion(key, f"{stem}.zero_point", required=False)
