"""The tensors of a checkpoint as they are unpacked: names and shapes without quantisation, and what does not fit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import msgspec

from blockaudit.checkpoint.files import gc_paused
from blockaudit.checkpoint.quantization import bitsandbytes, compressed, gptq, mxfp4, scaled, torchao
from blockaudit.checkpoint.quantization.declared import Declared, declared
from blockaudit.checkpoint.quantization.reader import CONFIG, Groups, Reader
from blockaudit.checkpoint.quantization.skips import skips
from blockaudit.records.checkpoint import Checkpoint, TensorHeader
from blockaudit.records.quantised import Quantised

# In this order: a tensor belongs to the first that claims it.
_SCHEMES = (torchao.read, bitsandbytes.read, gptq.read, compressed.read, mxfp4.read, scaled.read)
# Scheme -> the quant_methods of config.json under which it is stored; a scheme that is not here needs none.
_METHODS: dict[str, tuple[str, ...]] = {
    "gptq": ("gptq", "auto-round"),
    "awq": ("awq", "auto-round"),
    "bitsandbytes": ("bitsandbytes",),
    "pack-quantized": ("compressed-tensors",),
    "nvfp4": ("compressed-tensors", "modelopt", "nvfp4"),
    "mxfp4": ("mxfp4", "compressed-tensors"),
    "fp8": ("fp8", "fbgemm_fp8", "compressed-tensors", "modelopt", "mxfp8"),
    "int8": ("compressed-tensors",),
    "torchao": ("torchao",),
}
_KNOWN = {method for methods in _METHODS.values() for method in methods}
# Last words of keys that only a quantised weight has beside it: without one they are left over.
_ONLY_BESIDE = ("weight_scale_inv", "SCB", "qzeros", "g_idx", "absmax", "quant_map", "nested_absmax")
_BESIDE = (*_ONLY_BESIDE, "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx", "weight_global_scale")
# Numbers that are no weights until a scheme says how they are meant.
_PACKED = ("I8", "U8", "I16", "U16", "I32", "U32", "F4", "F6_E2M3", "F6_E3M2", "F8_E8M0")
_LOW = (*_PACKED, "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")


class View(msgspec.Struct, frozen=True):
    """Tensors by the names that they have unquantised. `stored` gives the key in the file where it is another.

    `exponents` are keys of bytes that hold the exponents of scales, as F8_E8M0 would.
    """

    tensors: dict[str, TensorHeader]
    stored: dict[str, str]
    quantised: Quantised
    declared: Declared
    exponents: frozenset[str] = frozenset()


def logical_view(checkpoint: Checkpoint, config: Mapping[str, Any] | None = None) -> View:
    """The checkpoint as its schemes unpack it; companions are left out, and every misfit is noted.

    `config` is that of the text stack, where it is not all of config.json.
    """
    said = declared(checkpoint.config, config)
    with gc_paused():
        groups = _group(checkpoint.tensors)
        plain = not any(word in groups for word in _ONLY_BESIDE)
        if not said.present and plain and not any(t.dtype in _LOW for t in checkpoint.tensors.values()):
            return View(checkpoint.tensors, {}, Quantised("none", False, ""), said)
        reader = Reader(checkpoint, said, groups)
        for scheme in _SCHEMES:
            scheme(reader)
        _leftovers(reader)
        _left_out(reader)
        return _view(reader)


def _group(tensors: Mapping[str, TensorHeader]) -> Groups:
    """Last word of the keys -> the keys that end in it."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for key in tensors:
        groups[key.rpartition(".")[2]].append(key)
    return groups


def _family(scheme: str) -> str:
    """`fp8-block` -> `fp8`: what a method speaks of."""
    return next((name for name in _METHODS if scheme.startswith(name)), scheme)


def _leftovers(reader: Reader) -> None:
    """Companions without a weight, and weights in whole numbers that no scheme explains."""
    for words, known in ((_BESIDE, bool(reader.weights)), (_ONLY_BESIDE, True)):
        for key in (k for word in words if known for k in reader.groups.get(word, ()) if k not in reader.claimed):
            reader.claimed.add(key)
            reader.misfit("scales without a quantised weight", key, "a quantised weight beside it", None)
    for word in scaled.ACTIVATIONS if reader.weights else ():
        reader.claimed.update(reader.groups.get(word, ()))
    for weight in [w for w in reader.weights.values() if w.name != w.stored and w.name in reader.tensors]:
        reader.claimed.add(weight.name)
        reader.misfit("weights stored both packed and plain", weight.name, weight.stored, weight.name)
    for key in reader.groups.get("weight", ()):
        header = reader.tensors[key]
        if key not in reader.claimed and header.dtype in _PACKED:
            reader.add(key, key, "unknown", None, None, header.dtype)
            if reader.declared.method in _KNOWN or not reader.declared.method:
                reader.misfit("weights in whole numbers that no known scheme explains", key, "a float", header.dtype)


def _left_out(reader: Reader) -> None:
    """Quantised weights of modules that config.json says are not."""
    listed = skips(reader.declared)
    for weight in reader.weights.values():
        if listed.leaves_out(weight.name.rpartition(".")[0]):
            problem = "quantised weights of modules that config leaves out"
            reader.misfit(problem, weight.stored, "plain", weight.scheme, CONFIG)


def _view(reader: Reader) -> View:
    said = reader.declared
    counts = Counter(w.scheme for w in reader.weights.values())
    scheme = counts.most_common(1)[0][0] if counts else "none"
    methods = {name: _METHODS.get(_family(name)) for name in counts}
    undeclared = tuple(n for n, known in methods.items() if n != "unknown" and known and said.method not in known)
    by_stored = {w.stored: w for w in reader.weights.values()}
    tensors: dict[str, TensorHeader] = {}
    stored: dict[str, str] = {}
    for key, header in reader.tensors.items():
        weight = by_stored.get(key)
        if weight is None:
            if key not in reader.claimed:
                tensors[key] = header
            continue
        # Of a weight whose shape cannot be known nothing is read off the shape of what holds it.
        tensors[weight.name] = TensorHeader(header.dtype, weight.shape or (header.elements,), header.data_offsets)
        if weight.name != key:
            stored[weight.name] = key
    quantised = Quantised(
        scheme, said.present, said.method, not said.present or said.method in _KNOWN, reader.shown.get(scheme, ""),
        reader.weights, undeclared, tuple(reader.misfits),
    )  # fmt: skip
    return View(tensors, stored, quantised, said, frozenset(reader.exponents))
