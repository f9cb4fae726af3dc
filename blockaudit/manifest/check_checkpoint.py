"""Checkpoint manifests: keys that name each other, and what they cannot both say."""

from __future__ import annotations

import re
from collections.abc import Iterator

from blockaudit.manifest import grammar
from blockaudit.manifest.check_joined import BITS, named
from blockaudit.records.checkpoint_manifest import CheckpointManifest, Quantisation, StoredBuffer, StoredNorm

_TEMPLATE = re.compile(r"([^{}]|\{[a-z_][a-z0-9_]*\})+")
_AXIS = re.compile(r"\{([^{}]*)\}")


def checkpoint(manifest: CheckpointManifest) -> Iterator[str]:
    """Findings on a checkpoint manifest."""
    yield from named(manifest.schema, "checkpoint-manifest", manifest.architecture_id)
    shapes: dict[str, list[int | str]] = {}
    for entry in manifest.tensors:
        if entry.key in shapes:
            yield f"{entry.key}: given twice"
        shapes[entry.key] = entry.shape
        yield from (f"{entry.key}: {said}" for said in _template(entry.key, manifest))
        yield from (f"{entry.key}: {said}" for side in entry.shape if isinstance(side, str) for said in _size(side))
        if entry.transpose == "in_out" and len(entry.shape) < 2:
            yield f"{entry.key}: transpose {entry.transpose} on a tensor of {len(entry.shape)} axes"
        if entry.dtype is not None and entry.dtype not in BITS:
            yield f"{entry.key}: dtype: expected one of {', '.join(BITS)}, found {entry.dtype}"
    for name, count in manifest.axes.items():
        if isinstance(count, str):
            yield from (f"axes.{name}: {said}" for said in _size(count))
        if not any(f"{{{name}}}" in key for key in shapes):
            yield f"axes.{name}: no key has it"
    yield from _shared(manifest, shapes)
    yield from _norm_keys(manifest, shapes)
    names = [buffer.key for buffer in manifest.buffers]
    yield from (f"{name}: a buffer given twice" for name in dict.fromkeys(names) if names.count(name) > 1)
    for buffer in manifest.buffers:
        yield from (f"{buffer.key}: {said}" for said in _buffer(buffer, shapes))
    if manifest.quantisation is not None:
        yield from (f"quantisation: {said}" for said in _quantisation(manifest.quantisation, shapes))


def _template(key: str, manifest: CheckpointManifest) -> Iterator[str]:
    if not _TEMPLATE.fullmatch(key):
        yield "not a key template: braces hold one axis, as in {l}"
    yield from (f"axis {{{a}}} is not in axes" for a in _AXIS.findall(key) if a not in manifest.axes)


def _size(text: str) -> Iterator[str]:
    try:
        grammar.parse(text)
    except grammar.ExpressionError as error:
        yield str(error)


def _shared(manifest: CheckpointManifest, shapes: dict[str, list[int | str]]) -> Iterator[str]:
    target = {s.key: s.same_as for s in manifest.shared}
    for shared in manifest.shared:
        if shared.key == shared.same_as or target.get(shared.same_as) == shared.key:
            yield f"{shared.key}: {shared.how} to itself"
        elif shared.same_as not in shapes:
            yield f"{shared.key}: {shared.how} to {shared.same_as}, which is no key of this checkpoint"
        elif shared.how == "aliased" and shared.key not in shapes:
            yield f"{shared.key}: an alias is stored under both names, and this one is no key of this checkpoint"
        elif shared.key in shapes and shapes[shared.key] != shapes[shared.same_as]:
            yield f"{shared.key}: shape {shapes[shared.key]}, and {shared.same_as} has {shapes[shared.same_as]}"


def _norm_keys(manifest: CheckpointManifest, shapes: dict[str, list[int | str]]) -> Iterator[str]:
    for norm in manifest.norms:
        yield from (f"{norm.site}: {said}" for said in _norm(norm, shapes))
    final = [n.weight for n in manifest.norms if n.site.endswith("final_norm")]
    if manifest.final_norm is not None and manifest.final_norm not in shapes:
        yield f"final_norm: {manifest.final_norm} is no key of this checkpoint"
    if final and manifest.final_norm not in final:
        yield f"final_norm: {manifest.final_norm}, and norms has {', '.join(map(str, final))}"


def _norm(norm: StoredNorm, shapes: dict[str, list[int | str]]) -> Iterator[str]:
    for key in (norm.weight, norm.bias):
        if key is not None and key not in shapes:
            yield f"{key} is no key of this checkpoint"
    twin = norm.weight.removesuffix("weight") + "bias" if norm.weight is not None else None
    if norm.bias is None and twin in shapes:
        yield f"bias: none declared, and {twin} is a key of this checkpoint"
    if norm.weight is None and norm.bias is not None:
        yield "bias: a bias without a weight"


def _buffer(buffer: StoredBuffer, shapes: dict[str, list[int | str]]) -> Iterator[str]:
    if buffer.state == "derived" and not buffer.derived_from:
        yield "derived_from: what is it computed from?"
    if buffer.state == "owned" and buffer.derived_from:
        yield f"derived_from: {buffer.derived_from}, and the checkpoint owns it"
    if buffer.state == "owned" and buffer.key not in shapes:
        yield "owned by the checkpoint, which has no such key"


def _quantisation(given: Quantisation, shapes: dict[str, list[int | str]]) -> Iterator[str]:
    allowed = {
        "gptq": (2, 3, 4, 8), "awq": (4,), "bitsandbytes_8bit": (8,), "bitsandbytes_4bit": (4,), "fp8": (8,),
        "mxfp4": (4,),
    }[given.scheme]  # fmt: skip
    if given.bits not in allowed:
        yield f"bits: {given.scheme} packs {' or '.join(map(str, allowed))} bits, found {given.bits}"
    if given.scheme == "mxfp4" and given.group_size not in (None, 32):
        yield f"group_size: mxfp4 shares a scale between 32 weights, found {given.group_size}"
    if given.scheme == "awq" and given.group_size is None:
        yield "group_size: awq packs by groups"
    yield from (f"excluded: {key} is no key of this checkpoint" for key in given.excluded if key not in shapes)
