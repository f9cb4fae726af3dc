"""MXFP4 as gpt-oss stores it: `X_blocks` [..., out, in / 32, 16] and `X_scales` [..., out, in / 32] in place of X.

The parameter X itself is [..., in, out]: gpt-oss multiplies from the left.
"""

from __future__ import annotations

from blockaudit.checkpoint.quantization.reader import Reader

_HALF = 16  # bytes of one block: 32 numbers of four bits


def read(reader: Reader) -> None:
    """Every pair of blocks and scales."""
    words = [w for w in reader.groups if w.endswith("_blocks")]
    declared = reader.declared.method == "mxfp4"
    for word in words:
        name = word.removesuffix("_blocks")
        if not declared and f"{name}_scales" not in reader.groups:
            continue
        for key in reader.groups[word]:
            _pair(reader, key, key.removesuffix("_blocks"))


def _pair(reader: Reader, key: str, name: str) -> None:
    shape = reader.tensors[key].shape
    if len(shape) < 3 or shape[-1] != _HALF:
        reader.misfit("blocks of the wrong shape", key, f"[..., out, in / 32, {_HALF}]", list(shape))
        reader.add(name, key, "mxfp4", None, 4)
        reader.companion(key, f"{name}_scales", what="scales")
        return
    reader.exponent(f"{name}_scales")
    *outer, out, blocks, half = shape
    reader.add(name, key, "mxfp4", (*outer, blocks * half * 2, out), 4)
    reader.companion(key, f"{name}_scales", shape[:-1], what="scales")
