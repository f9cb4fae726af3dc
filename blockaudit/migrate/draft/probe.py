"""Which fields of the contract are the value of a config key, as it stands: asked of the manifest, key by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, cast

from blockaudit.manifest.bind import bind
from blockaudit.manifest.values import lookup
from blockaudit.migrate.imagined import bounds
from blockaudit.records.bound import BoundManifest, Resolved
from blockaudit.records.manifest import Manifest

# A value that no expression gives and no config holds: a field that has it is the key's own value.
_MARK = "blockaudit: the value of this key"
_ABSENT: Any = lookup({}, "absent")
# The object that stretches rotary frequencies has no field of its own: its parts are fields.
SCALING = ".rotary.scaling"
_TYPE = ".rotary.type"

Reads = dict[str, tuple[str, ...]]  # field -> the spellings of the config key that it is the value of, first one first


def direct(manifest: Manifest, config: Mapping[str, Any], class_name: str | None) -> Reads:
    """Every field, function, dimension and tie of a manifest that is one config key's value and nothing else.

    Dimensions go by `dims.NAME`, ties by `tie.ROLE`. Every other key holds a value of its own meanwhile, so that what
    falls back on another key's value is not taken for that key's.
    """
    base, found = _filled(manifest, config), dict[str, list[str]]()
    plain = items(bind(manifest, base, pins=False, class_name=class_name))
    for key, rivals in spellings(manifest).items():
        marked, given = partial(_marked, base, rivals, key), lookup(base, key)
        said = items(bind(manifest, marked(_MARK), pins=False, class_name=class_name))
        for name in (n for n, value in said.items() if value.value == _MARK):
            # Where a condition asks for the key's own value, it is the field's under some values alone.
            if given in (_ABSENT, None) or (name in plain and plain[name].value == given):
                found.setdefault(name, []).append(key)
        if (given in (_ABSENT, None) or isinstance(given, dict)) and _scales(said):
            inner = items(bind(manifest, marked({"rope_type": _MARK}), pins=False, class_name=class_name))
            for name in (n for n, value in inner.items() if n.endswith(_TYPE) and value.value == _MARK):
                found.setdefault(name.removesuffix(_TYPE) + SCALING, []).append(key)
    return {name: tuple(keys) for name, keys in found.items()}


def _scales(said: Mapping[str, Resolved]) -> bool:
    """Whether the key that is marked is the object that stretches rotary frequencies."""
    return any(name.endswith(_TYPE) and _MARK in str(value.value) for name, value in said.items())


def items(bound: BoundManifest) -> dict[str, Resolved]:
    """What a bound manifest says, by the names that `direct` uses."""
    ties = {f"tie.{t.role}": t.tied for t in (*bound.expected, *bound.foreign) if t.tied is not None}
    dims = {f"dims.{name}": value for name, value in bound.dims.items()}
    return {**bound.fields, **bound.functions, **dims, **ties}


def spellings(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """Every config key that a manifest reads, with the other spellings of what it is read for."""
    found: dict[str, set[str]] = {}
    for bound in bounds(manifest):
        keys = _keys(bound.config)
        for key in keys:
            found.setdefault(key, set()).update(k for k in keys if k != key)
    return {key: tuple(sorted(rivals)) for key, rivals in found.items()}


def reads(manifest: Manifest) -> frozenset[str]:
    """Every config key that a class of the manifest reads, also those that change nothing in the block."""
    return frozenset((*spellings(manifest), *manifest.config_reads))


def _keys(config: str | Sequence[str] | None) -> tuple[str, ...]:
    return (config,) if isinstance(config, str) else tuple(config or ())


def _filled(manifest: Manifest, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with a value for every key that it lacks."""
    base, bound = deepcopy(dict(config)), bind(manifest, config, pins=False)
    for name, declared in _dims(manifest):
        value = bound.dims[name].value
        if all(lookup(base, key) in (_ABSENT, None) for key in declared):
            base[declared[0]] = 1 if value is None else value
    for one in bounds(manifest):
        keys = _keys(one.config)
        absent = keys and all(lookup(base, key) is _ABSENT for key in keys)
        if absent and isinstance(one.default, bool | int | float | str):
            base[keys[0]] = one.default
    return base


def _dims(manifest: Manifest) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, value in manifest.dims.items():
        if keys := _keys(getattr(value, "config", None)):
            yield name, keys


def _marked(base: Mapping[str, Any], rivals: Sequence[str], key: str, value: Any) -> dict[str, Any]:
    """The config with one key's value in place, and no other spelling of it."""
    config = deepcopy(dict(base))
    for rival in rivals:
        _remove(config, rival)
    _remove(config, key)
    # A dotted key is looked for as it stands before it is taken apart.
    return {**config, key: value}


def _remove(config: dict[str, Any], key: str) -> None:
    config.pop(key, None)
    *path, last = key.split(".")
    here: Any = config
    for part in path:
        here = cast("dict[str, Any]", here).get(part) if isinstance(here, dict) else None
    if isinstance(here, dict):
        cast("dict[str, Any]", here).pop(last, None)
