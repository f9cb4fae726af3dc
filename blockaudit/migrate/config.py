"""The target's config.json, made from the source's: carried, renamed, dropped, supplied."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import msgspec

from blockaudit.manifest import grammar
from blockaudit.manifest.values import lookup
from blockaudit.migrate import templates
from blockaudit.records.checkpoint import Fault
from blockaudit.records.manifest import Manifest
from blockaudit.records.migration import MigrationMap, Supplied, TensorType

# What says which model it is: it comes from the target's manifest. The last two name files and code of the source.
_OF_THE_TARGET = ("model_type", "architectures", "auto_map", "_name_or_path")
ABSENT: Any = lookup({}, "absent")


class Carried(msgspec.Struct, frozen=True):
    """The target's config, and what went wrong on the way. `renamed`, `dropped` and `supplied` are for the report."""

    config: dict[str, Any]
    flaws: tuple[Fault, ...]
    renamed: dict[str, str]
    dropped: tuple[str, ...]
    supplied: tuple[str, ...]


def carried(
    map_: MigrationMap, source: Mapping[str, Any] | None, target: Manifest, types: Mapping[str, TensorType]
) -> Carried:
    """The config of the target. A key of one name carries over; `model_type` is the target manifest's own."""
    # A copy: nested objects are written into below.
    given = deepcopy(dict(source or {}))
    config: dict[str, Any] = {}
    flaws: list[Fault] = []
    for key, value in given.items():
        new = map_.config.get(key, key)
        if new is not None and key not in _OF_THE_TARGET and (rest := _unnamed(key, value, map_)) is not ABSENT:
            _carry(config, key, new, rest, flaws)
    for key, new in map_.config.items():
        # A dotted key names a nested value, which the loop above has left out.
        if key not in given and new is not None and (value := lookup(given, key)) is not ABSENT:
            _carry(config, key, new, value, flaws)
    for key, said in map_.supply.items():
        value = _supplied(key, said, given, types, flaws)
        if value is not ABSENT:
            put(config, key, value)
    model_types = target.match.model_types
    if given.get("model_type") in model_types:
        config["model_type"] = given["model_type"]
    elif model_types:
        config["model_type"] = model_types[0]
    dropped = tuple(k for k, new in map_.config.items() if new is None and k in given)
    renamed = {k: new for k, new in map_.config.items() if new is not None and k != new}
    return Carried(config, tuple(flaws), renamed, dropped, tuple(map_.supply))


def _carry(config: dict[str, Any], key: str, new: str, value: Any, flaws: list[Fault]) -> None:
    """One value of the source's config, under its name in the target; two that differ cannot have one name."""
    there = lookup(config, new)
    if there is not ABSENT and there != value:
        flaws.append(
            Fault(
                "map-not-injective",
                f"config.{new}",
                f"two keys of the source's config become {new}: one says {there!r}, {key} says {value!r}: set one of "
                "them to null under config",
                expected=there,
                observed=value,
                evidence=f"config.{key}",
            )
        )
    put(config, new, value)


def _unnamed(key: str, value: Any, map_: MigrationMap) -> Any:
    """What is left of an object when the values that the map names by dotted keys are taken out; absent if nothing."""
    named = {name.removeprefix(f"{key}.") for name in map_.config if name.startswith(f"{key}.")}
    if not named or not isinstance(value, dict):
        return value
    rest: dict[str, Any] = {k: v for k, v in value.items() if k not in named}  # pyright: ignore[reportUnknownVariableType]
    return rest or ABSENT


def literals(supply: Mapping[str, Any]) -> dict[str, Any]:
    """What is supplied as it stands: a map that writes it one way reads nothing else the other way."""
    found: dict[str, Any] = {}
    for key, said in supply.items():
        if not _computed(said):
            put(found, key, said)
    return found


def _computed(said: Any) -> bool:
    return isinstance(said, dict) and bool(said) and set(said) <= {"tensor", "dim", "axis", "expr"}  # pyright: ignore[reportUnknownArgumentType]


def put(config: dict[str, Any], key: str, value: Any) -> None:
    """Set a value at a dotted key."""
    *path, last = key.split(".")
    here = config
    for part in path:
        if not isinstance(here.get(part), dict):
            here[part] = {}
        here = here[part]
    here[last] = value


def _supplied(
    key: str, said: Any, config: Mapping[str, Any], types: Mapping[str, TensorType], flaws: list[Fault]
) -> Any:
    """A literal, a size of a source tensor, or an expression over the source's config."""
    if not _computed(said):
        return said
    try:
        spec = msgspec.convert(said, Supplied)
    except msgspec.ValidationError as error:
        flaws.append(Fault("map-invalid", f"supply.{key}", f"supply {key}: {error}", evidence=f"supply.{key}"))
        return ABSENT
    if spec.expr is not None:
        try:
            env = {name: lookup(config, name) for name in grammar.symbols(spec.expr)}
            absent = sorted(n for n, v in env.items() if v is ABSENT)
            if absent:
                flaws.append(_lost(key, f"{spec.expr!r} needs {', '.join(absent)}, which the source's config lacks"))
                return ABSENT
            return grammar.evaluate(spec.expr, env)
        except grammar.ExpressionError as error:
            flaws.append(_lost(key, f"{spec.expr!r} cannot be computed: {error}"))
            return ABSENT
    parts = _parts(spec, types)
    if not parts or not all(-len(t.shape) <= spec.dim < len(t.shape) for t in parts):
        flaws.append(_lost(key, f"it is axis {spec.dim} of {spec.tensor}, which the source does not have"))
        return ABSENT
    return sum(t.shape[spec.dim] for t in parts)


def _parts(spec: Supplied, types: Mapping[str, TensorType]) -> list[TensorType]:
    """The tensor that a size is read off, or its parts on every place of `axis`; of rank files, the first has it."""
    name = spec.tensor or ""
    if spec.axis is None:
        found = types.get(name) or types.get(f"0/{name}")
        return [] if found is None else [found]
    template = f"{{{spec.axis}}}/{name}" if spec.axis == "r" else name
    return [types[key] for key in templates.matches(template, types).values()]


def _lost(key: str, why: str) -> Fault:
    return Fault("map-config-lost", f"config.{key}", f"{key} cannot be supplied: {why}", evidence=f"supply.{key}")
