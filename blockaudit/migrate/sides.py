"""The two ends of a map: the manifest of each, bound to a config, with every key that it expects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

import msgspec

from blockaudit.checkpoint.quantization.view import logical_view
from blockaudit.manifest.bind import bind, classes, config_classes
from blockaudit.manifest.library import Choice, choose, effective_config
from blockaudit.manifest.load import LoadedManifest
from blockaudit.reconcile import expand
from blockaudit.reconcile.assemble import fitted
from blockaudit.reconcile.gguf.config import configured
from blockaudit.records.binding import Binding
from blockaudit.records.bound import BoundManifest, ExpectedTensor
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.migration import TensorType


class Slot(msgspec.Struct, frozen=True):
    """One key that a manifest expects. `layer` counts from 0 in its stack, whatever number the key has."""

    expected: ExpectedTensor
    layer: int | None

    @property
    def tied(self) -> bool:
        """Whether it shares another key's storage, so that it need not be stored."""
        return self.expected.tied is not None and bool(self.expected.tied.value)

    @property
    def needed(self) -> bool:
        return not (self.expected.optional or self.expected.derived or self.tied)


class Side(msgspec.Struct, frozen=True):
    """One end. `slots` are empty where the manifest speaks of the function alone and not of these keys.

    `types` are the stored tensors by key, as they are (source) or as they will be (target).
    """

    loaded: LoadedManifest | None
    bound: BoundManifest | None
    slots: dict[str, Slot]
    types: dict[str, TensorType]
    config: dict[str, Any] | None

    def function(self, name: str) -> Any:
        """What a branch computes by name (`decoder.self_attention.rotary.pairing`); None where nothing says it."""
        found = None if self.bound is None else self.bound.functions.get(name)
        return found.value if found is not None and found.known else None

    @property
    def pairing(self) -> str | None:
        """The pairing of rotary coordinates, where these keys are known and have one and no more."""
        return pairing(self.bound) if self.slots else None

    @property
    def dims(self) -> dict[str, Any]:
        if self.bound is None:
            return {}
        return {name: found.value for name, found in self.bound.dims.items() if found.known}


def pairing(bound: BoundManifest | None) -> str | None:
    """The pairing of rotary coordinates, where a manifest has one and no more."""
    if bound is None:
        return None
    said = {v.value for name, v in bound.functions.items() if name.endswith(".rotary.pairing") and v.known}
    return said.pop() if len(said) == 1 else None


def slots_of(bound: BoundManifest) -> dict[str, Slot]:
    """Every key that a bound manifest expects."""
    first = {span.name: span.first for span in bound.spans}
    return {
        key: Slot(tensor, None if layer is None else layer - first.get(tensor.stack or "", 0))
        for tensor in bound.expected
        for key, layer in _keys(tensor)
    }


def _keys(tensor: ExpectedTensor) -> Iterator[tuple[str, int | None]]:
    axes = expand.axes(tensor)
    pieces = expand.AXIS.split(tensor.template)
    for numbers in product(*axes.values()):
        at = dict(zip(axes, numbers, strict=True))
        yield "".join(str(at[p]) if n % 2 else p for n, p in enumerate(pieces)), at.get("l")


def fitting(loaded: LoadedManifest, config: Mapping[str, Any] | None, keys: Iterable[str]) -> BoundManifest:
    """The manifest under this config, of the class (config's, else any) whose keys are those given, or come nearest."""
    held = set(keys)
    named = [n for n in config_classes(config) if n in classes(loaded.manifest)]

    def odd(bound: BoundManifest) -> int:
        slots = slots_of(bound)
        return sum(s.needed and k not in held for k, s in slots.items()) + sum(k not in slots for k in held)

    tried = [
        bind(loaded.manifest, {**(config or {}), "architectures": [name]} if name else config, class_name=name)
        for name in named[:1] or classes(loaded.manifest) or [None]
    ]
    return min(tried, key=odd)


def source_side(loaded: LoadedManifest | None, checkpoint: Checkpoint) -> Side:
    """The source as its manifest, or where the map names none, as the family that config.json names, says it is."""
    types = {key: TensorType(header.dtype, header.shape) for key, header in checkpoint.tensors.items()}
    if loaded is not None:
        # A GGUF file has metadata, which is read in the words of the manifest.
        checkpoint = configured(checkpoint, loaded.manifest)
    config = checkpoint.config
    if loaded is not None:
        bound = fitting(loaded, config, bare(types))
        return Side(loaded, bound, _ranked(slots_of(bound), types), types, config)
    config = effective_config(config)
    choice = choose(None, checkpoint) if config is not None else None
    if not isinstance(choice, Choice) or (choice.chosen_by == "keys" and choice.also):
        # Keys that are several families' do not say which function they carry.
        return Side(None, None, {}, types, config)
    view = logical_view(checkpoint, config)
    bound, binding = fitted(view, choice.loaded.manifest, config, pins=True, container=checkpoint.container)
    slots = _recognised(bound, binding)
    if not slots and not config_classes(config):
        # Keys that say nothing do not say which class this is either: the family's first.
        bound = bind(choice.loaded.manifest, config, class_name=next(iter(classes(choice.loaded.manifest)), None))
    return Side(choice.loaded, bound, slots, types, config)


def _recognised(bound: BoundManifest, found: Binding) -> dict[str, Slot]:
    """Slots by the keys as they are stored, where the whole key set is the family's, a root or a wrapper apart.

    Else none: a single key that is called like one of the family's is no evidence.
    """
    slots = slots_of(bound)
    whole = not (found.unexpected or found.gaps or any(t.missing for t in found.templates if not t.expected.optional))
    return {found.stored(k): slot for k, slot in slots.items() if k in found.tensors} if whole else {}


def bare(types: Iterable[str]) -> set[str]:
    """Keys without the rank in front (`0/`) that those of rank files have."""
    return {key.partition("/")[2] if key[:1].isdigit() and "/" in key else key for key in types}


def _ranked(slots: dict[str, Slot], types: Mapping[str, TensorType]) -> dict[str, Slot]:
    """Slots by the keys as they are stored: of rank files, one for every rank."""
    found = dict(slots)
    for key in types:
        rank, mark, name = key.partition("/")
        if mark and rank.isdigit() and name in slots:
            found[key] = slots[name]
            found.pop(name, None)
    return found
