"""A source that is not there: what a manifest expects by its own defaults, so that a map can be proved without one."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import msgspec
from msgspec.structs import replace

from blockaudit.manifest.bind import bind, classes
from blockaudit.manifest.load import LoadedManifest
from blockaudit.manifest.values import lookup
from blockaudit.migrate import templates
from blockaudit.migrate.config import ABSENT, literals, put
from blockaudit.migrate.sides import Side, Slot, slots_of
from blockaudit.records.manifest import Bound
from blockaudit.records.migration import MigrationMap, TensorType
from blockaudit.records.operations import Concat

# Layers and experts repeat: a few show what all do.
_FEW = 3
_RANKS = 2


def imagined(loaded: LoadedManifest, map_: MigrationMap, target: LoadedManifest) -> Iterator[Side]:
    """The source as it would be by its class's defaults; with fewer key/value heads; with its ties the other way.

    A key that the source's class has no default for takes that of the target's, under the map's name for it; one that
    the way back writes has the value that it writes.
    """
    usual = _explicit(target, {})

    def whole(given: dict[str, Any]) -> dict[str, Any]:
        """A config with these values, and what follows from them."""
        config = _explicit(loaded, given)
        for declared in bounds(loaded.manifest):
            key = _first(declared)
            new = map_.config.get(key, key)
            if new is not None and declared.default is None and lookup(config, key) is ABSENT:
                value = lookup(usual, new)
                if value is not ABSENT:
                    put(config, key, value)
        return config

    said = literals(map_.supply_back)
    config = whole(said)
    yield _side(loaded, config, map_)
    bound = bind(loaded.manifest, config)
    grouped = _key_of(loaded, "n_kv")
    heads = bound.dims.get("n_heads")
    if grouped is not None and heads is not None and isinstance(heads.value, int) and heads.value % 2 == 0:
        yield _side(loaded, whole({**said, grouped: heads.value // 2}), map_)
    for tied in dict.fromkeys(k for t in bound.expected if t.tied is not None for k in t.tied.keys):
        now = lookup(config, tied)
        if isinstance(now, bool) and lookup(said, tied) is ABSENT:
            yield _side(loaded, whole({**said, tied: not now}), map_)


def _key_of(loaded: LoadedManifest, dim: str) -> str | None:
    said = loaded.manifest.dims.get(dim)
    return _first(said) or None if isinstance(said, Bound) else None


def _first(said: Bound) -> str:
    """The first spelling of a config key; empty where the value is read off none."""
    return said.config if isinstance(said.config, str) else (said.config or [""])[0]


def _explicit(loaded: LoadedManifest, given: dict[str, Any]) -> dict[str, Any]:
    """Every config key that the manifest reads, with the class's default: nothing is left to be implied."""
    config = deepcopy(given)
    if loaded.manifest.match.model_types:
        config["model_type"] = loaded.manifest.match.model_types[0]
    bound = bind(loaded.manifest, config)
    for dim, value in loaded.manifest.dims.items():
        key = _key_of(loaded, dim)
        found = bound.dims[dim]
        if (
            isinstance(value, Bound)
            and key is not None
            and lookup(given, key) is ABSENT
            and found.known
            and found.value is not None
        ):
            few = found.value if not _counts(dim) or not isinstance(found.value, int) else min(found.value, _FEW)
            put(config, key, few)
    for declared in bounds(loaded.manifest):
        key = _first(declared)
        if key and lookup(config, key) is ABSENT and isinstance(declared.default, bool | int | float | str):
            put(config, key, declared.default)
    return config


def _counts(dim: str) -> bool:
    return dim.endswith("layers") or dim == "n_experts"


def bounds(value: Any) -> Iterator[Bound]:
    """Every value of a manifest that is read from a config."""
    if isinstance(value, Bound):
        if value.config is not None:
            yield value
        yield from (found for part in (value.default, value.then, value.else_) for found in bounds(part))
    elif isinstance(value, msgspec.Struct):
        yield from (found for name in value.__struct_fields__ for found in bounds(getattr(value, name)))
    elif isinstance(value, dict):
        yield from (found for part in value.values() for found in bounds(part))  # pyright: ignore[reportUnknownVariableType]
    elif isinstance(value, list | tuple):
        yield from (found for part in value for found in bounds(part))  # pyright: ignore[reportUnknownVariableType]


def _side(loaded: LoadedManifest, config: dict[str, Any], map_: MigrationMap) -> Side:
    name = _class_for(loaded, config, map_)
    named = {**config, "architectures": [name]} if name is not None else config
    bound = bind(loaded.manifest, named)
    slots = {k: s for k, s in slots_of(bound).items() if s.needed and None not in s.expected.shape}
    types = {key: _type(slot) for key, slot in slots.items()}
    if map_.ranks is not None:
        slots, types = _ranked(slots, map_)
    return Side(loaded, bound, slots, types, named)


def _class_for(loaded: LoadedManifest, config: dict[str, Any], map_: MigrationMap) -> str | None:
    """The class of which the map leaves least and names most: a map of a decoder with its head is one of that class.

    Of several, the first: a rule that takes whatever there is names none of them.
    """

    def odd(name: str) -> tuple[int, int]:
        slots = slots_of(bind(loaded.manifest, {**config, "architectures": [name]}))
        keys = [k for k, s in slots.items() if s.needed]
        taken = [t for rule in map_.rules for t in rule.sources] + [d.key for d in map_.drop]
        lacking = sum(not any(templates.bind(t, k) is not None for t in taken) for k in keys)
        named = sum(bool(templates.matches(t, keys)) for t in taken if "{*}" not in t)
        return lacking, -named

    known = classes(loaded.manifest)
    return min(known, key=odd) if known else None


def _type(slot: Slot) -> TensorType:
    return TensorType("F32", tuple(n or 0 for n in slot.expected.shape))


def _ranked(slots: dict[str, Slot], map_: MigrationMap) -> tuple[dict[str, Slot], dict[str, TensorType]]:
    """Every tensor on two ranks, cut along the axis on which the map joins them."""
    found: dict[str, Slot] = {}
    types: dict[str, TensorType] = {}
    for key, slot in slots.items():
        shape = list(_type(slot).shape)
        dim = _joined_along(key, map_)
        if dim is not None and dim < len(shape):
            shape[dim] //= _RANKS
        for rank in range(_RANKS):
            found[f"{rank}/{key}"] = replace(slot, expected=replace(slot.expected))
            types[f"{rank}/{key}"] = TensorType("F32", tuple(shape))
    return found, types


def _joined_along(key: str, map_: MigrationMap) -> int | None:
    for rule in map_.rules:
        if any(templates.bind(t, key) is not None for t in rule.sources):
            joins = [op.dim for op in rule.ops if isinstance(op, Concat) and op.axis == "r"]
            return joins[0] if joins else None
    return None
