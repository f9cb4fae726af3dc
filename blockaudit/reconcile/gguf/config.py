"""A config.json that the metadata of a GGUF file stands for, written in the words that a manifest asks for.

No table per family: what a manifest calls `n_kv` and binds to `num_key_value_heads` is `attention.head_count_kv` in
every GGUF file. What the format cannot say (a flag for biases, a flag for a tied head) is read off the stored tensors,
and is then no witness of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from blockaudit.checkpoint.gguf.metadata import DIMS, FIELDS, FUNCTIONS, Said, model_type, said, scaling, vocabulary
from blockaudit.checkpoint.gguf.tables import Names
from blockaudit.manifest.bind import bind
from blockaudit.reconcile import expand
from blockaudit.records.bound import BoundManifest
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.manifest import Bound, Manifest

_FLAGS = (".present", ".bias")
_FEW = 64


def configured(checkpoint: Checkpoint, manifest: Manifest) -> Checkpoint:
    """The checkpoint with the config that its metadata stands for; any other container's as it is."""
    if checkpoint.container is None:
        return checkpoint
    metadata = checkpoint.container.metadata
    config: dict[str, Any] = {"model_type": model_type(metadata)}
    places: dict[str, str] = {}
    for key, found in _dims(manifest, metadata):
        config[key], places[key] = found.value, f"GGUF metadata: {found.key}"
    few = _few_layers(manifest, config)
    bound = bind(manifest, few, pins=False)
    for key, found in _fields(bound, metadata, few):
        config[key], places[key] = found.value, f"GGUF metadata: {found.key}"
    for key, found in _functions(bound, manifest, metadata, config):
        config[key], places[key] = found.value, f"GGUF metadata: {found.key}"
    seen = _seen(manifest, {**config, **few}, bound, checkpoint)
    container = replace(checkpoint.container, places=places, inferred=frozenset(seen))
    return replace(checkpoint, config=config | seen, container=container)


def _few_layers(manifest: Manifest, config: dict[str, Any]) -> dict[str, Any]:
    """The same config with as many layers as show every kind: here it is asked which keys and flags there are."""
    depth = manifest.dims.get("n_layers")
    key = _first(depth) if isinstance(depth, Bound) else ""
    count = config.get(key)
    return {**config, key: min(count, _FEW)} if isinstance(count, int) else dict(config)


def _dims(manifest: Manifest, metadata: Mapping[str, Any]) -> Iterable[tuple[str, Said]]:
    for symbol, keys in DIMS.items():
        value = manifest.dims.get(symbol)
        found = vocabulary(metadata) if symbol == "vocab" else said(metadata, keys)
        if found is not None and isinstance(value, Bound) and value.config is not None:
            yield _first(value), found


def _fields(bound: BoundManifest, metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Iterable[tuple[str, Said]]:
    """Values of contract fields that one config key gives."""
    for field, value in bound.fields.items():
        for ending, keys in FIELDS.items():
            found = said(metadata, keys) if field.endswith(ending) else None
            # A default may hang on another key, which is known already (Qwen2's epsilon on the model type).
            asked = [key for key in value.keys if key not in config]
            if found is not None and len(asked) == 1:
                yield asked[0], found


def _functions(
    bound: BoundManifest, manifest: Manifest, metadata: Mapping[str, Any], config: Mapping[str, Any]
) -> Iterable[tuple[str, Said]]:
    """Values of what branches compute, under the one spelling of their config key that stands by itself."""
    for name, value in bound.functions.items():
        for ending, keys in FUNCTIONS.items():
            found = said(metadata, keys) if name.endswith(ending) else None
            plain = [k for k in value.keys if "." not in k]
            if found is not None and plain and plain[-1] not in config:
                yield plain[-1], found
    stretched = scaling(metadata)
    if stretched is not None:
        yield from ((key, stretched) for key in _scaling_keys(manifest) if key not in config)


def _scaling_keys(manifest: Manifest) -> set[str]:
    """The config keys that stretch rotary frequencies, of several spellings the last."""
    rotaries = (b.attention.rotary for s in manifest.stacks for b in s.branches if b.attention is not None)
    bounds = (r.scaling for r in rotaries if r is not None and r.scaling is not None)
    return {b.config if isinstance(b.config, str) else b.config[-1] for b in bounds if b.config}


def _first(value: Bound) -> str:
    return value.config if isinstance(value.config, str) else (value.config or [""])[0]


# -- what only the tensors show ---------------------------------------------------------------------------------------


def _seen(
    manifest: Manifest, config: Mapping[str, Any], bound: BoundManifest, checkpoint: Checkpoint
) -> dict[str, bool]:
    """Flags for norms and biases whose tensors are stored, and for a head that is not.

    A flag whose tensors are absent keeps the default of the class, for a lost tensor looks the same.
    """
    assert checkpoint.container is not None
    names = Names(checkpoint.container.architecture)
    seen: dict[str, bool] = {}
    flags = {v.keys[0] for f, v in bound.fields.items() if len(v.keys) == 1 and (f.endswith(_FLAGS) or ".bias." in f)}
    usual = {e.template for e in bound.expected}
    for key in sorted(flags - config.keys()):
        more = bind(manifest, {**config, key: True}, pins=False).expected
        fresh = (names.template(e.template) for e in more if e.template not in usual)
        if any(_stored(found[0], checkpoint) for found in fresh if found is not None):
            seen[key] = True
    for e in bound.expected:
        if e.tied is not None and len(e.tied.keys) == 1 and e.tied.keys[0] not in config:
            head = names.template(e.template)
            seen[e.tied.keys[0]] = head is None or not _stored(head[0], checkpoint)
    return seen


def _stored(template: str, checkpoint: Checkpoint) -> bool:
    if "{" not in template:
        return template in checkpoint.tensors
    wanted = expand.pattern(template)
    return any(wanted.fullmatch(key) for key in checkpoint.tensors)
