"""GPTQ and AWQ: `qweight` in words of several numbers each, with `qzeros` and `scales` by group.

GPTQ packs along the inputs (qweight [in * bits / 32, out]), AWQ along the outputs (qweight [in, out * bits / 32]).
Both put scales in [groups, out] and zero points, packed along the outputs, in [groups, out * bits / 32].
"""

from __future__ import annotations

from collections import Counter

from blockaudit.checkpoint.quantization.reader import CONFIG, Reader, ceil
from blockaudit.records.checkpoint import DTYPE_BITS, TensorHeader

_BITS = (2, 3, 4, 5, 6, 7, 8)
_WORDS = ("I32", "I16", "I64", "U32")


def read(reader: Reader) -> None:
    """Every `qweight` in words of integers."""
    for key in reader.groups.get("qweight", ()):
        packed = reader.tensors[key]
        if key in reader.claimed or packed.dtype not in _WORDS or len(packed.shape) != 2:
            continue
        stem = key.removesuffix("qweight")
        (_awq if _is_awq(reader, stem, packed) else _gptq)(reader, key, stem, packed)


def _is_awq(reader: Reader, stem: str, packed: TensorHeader) -> bool:
    """Scales tell: their columns are the outputs. Where they are not there, what config says."""
    scales = reader.tensors.get(f"{stem}scales")
    if f"{stem}g_idx" in reader.tensors:
        return False
    if scales is None or len(scales.shape) != 2 or not packed.shape[1]:
        return reader.declared.method == "awq"
    out, columns = scales.shape[1], packed.shape[1]
    return out != columns and out % columns == 0


def _declared_bits(reader: Reader) -> int | None:
    return reader.declared.number("bits", "w_bit") if reader.declared.uniform else None


def _likely(*seen: int | None) -> int | None:
    """The width that most parts agree on; the first of these where none has a majority."""
    counts = Counter(bits for bits in seen if bits in _BITS)
    return counts.most_common(1)[0][0] if counts else None


def _widths(reader: Reader, key: str, bits: int, declared: int | None) -> None:
    if declared is not None and declared != bits:
        reader.misfit("weights of another width than declared", key, declared, bits, f"{CONFIG}.bits")


def _gptq(reader: Reader, key: str, stem: str, packed: TensorHeader) -> None:
    word, (rows, out) = DTYPE_BITS[packed.dtype], packed.shape
    zeros, order = reader.tensors.get(f"{stem}qzeros"), reader.tensors.get(f"{stem}g_idx")
    declared = _declared_bits(reader)
    by_zeros = zeros.shape[-1] * word // out if zeros is not None and zeros.shape and out else None
    by_order = rows * word // order.shape[0] if order is not None and order.shape and order.shape[0] else None
    bits = _likely(by_zeros, declared, by_order)
    if bits is None:
        reader.add(f"{stem}weight", key, "gptq", None, None)
        return
    _widths(reader, key, bits, declared)
    width = rows * word // bits
    reader.add(f"{stem}weight", key, "gptq", (out, width), bits)
    # The order of inputs is only there where they were sorted, or where the packer writes it always.
    reader.companion(key, f"{stem}g_idx", (width,), required=reader.declared.raw.get("desc_act") is True)
    _by_group(reader, key, stem, width, out, ceil(out * bits, word))


def _awq(reader: Reader, key: str, stem: str, packed: TensorHeader) -> None:
    word, (width, columns) = DTYPE_BITS[packed.dtype], packed.shape
    scales = reader.tensors.get(f"{stem}scales")
    declared = _declared_bits(reader)
    by_scales = columns * word // scales.shape[-1] if scales is not None and scales.shape and scales.shape[-1] else None
    bits = _likely(by_scales, declared)
    # The other versions (gemv and its kin) store other shapes under the same names.
    if bits is None or reader.declared.text("version").lower() not in ("", "gemm"):
        reader.add(f"{stem}weight", key, "awq", None, bits)
        for name in ("qzeros", "scales"):
            reader.companion(key, f"{stem}{name}")
        return
    _widths(reader, key, bits, declared)
    out = columns * word // bits
    reader.add(f"{stem}weight", key, "awq", (out, width), bits)
    _by_group(reader, key, stem, width, out, columns, zeros=reader.declared.raw.get("zero_point") is not False)


def _by_group(
    reader: Reader, key: str, stem: str, width: int, out: int, packed_out: int, *, zeros: bool = True
) -> None:
    """Scales [groups, out] and zero points [groups, packed outputs]."""
    stored = [reader.tensors.get(f"{stem}{name}") for name in ("scales", "qzeros")]
    seen = [t.shape[0] for t in stored if t is not None and len(t.shape) == 2]
    # Scales and zero points that agree on another number of groups show another size; one of them alone is wrong.
    shown = seen[0] if len(set(seen)) == 1 else None
    size = reader.declared.number("group_size", "q_group_size")
    for groups in reader.grouped(f"{stem}scales", width, shown, size) or (shown,):
        known = groups is not None
        reader.companion(key, f"{stem}scales", (groups, out) if known else None, what="scales")
        reader.companion(key, f"{stem}qzeros", (groups, packed_out) if known else None, required=zeros)
