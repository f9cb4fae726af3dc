"""The config of a draft: keys that are the value of one field of the contract on both sides change their name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from blockaudit.manifest.values import lookup
from blockaudit.migrate.draft.probe import Reads, direct, reads, spellings
from blockaudit.records.bound import BoundManifest

# Symbols that mean one thing in every manifest (contract, section 7); others where both sides' shapes use them.
_DIMS = ("d_model", "n_layers", "n_heads", "n_kv", "d_head", "d_ff", "vocab", "n_experts")
_ABSENT: Any = lookup({}, "absent")


class Keys(msgspec.Struct, frozen=True):
    """What the keys of either side's config are read for; `config` is the source's own."""

    mine: Reads
    theirs: Reads
    config: Mapping[str, Any]


def keys_of(source: BoundManifest, target: BoundManifest, config: Mapping[str, Any], made: Mapping[str, Any]) -> Keys:
    """`made` is the target's config as far as it is known; the source's manifest goes by the target's names."""
    shared = {*_DIMS, *(_symbols(source) & _symbols(target))}

    def known(found: Reads) -> Reads:
        return {n: keys for n, keys in found.items() if not n.startswith("dims.") or n[5:] in shared}

    mine = direct(source.manifest, config, source.class_name)
    theirs = direct(target.manifest, made, target.class_name)
    return Keys(known(mine), known(theirs), config)


def _symbols(bound: BoundManifest) -> set[str]:
    """Symbols that are a whole axis of some tensor."""
    return {s for tensor in bound.expected for s in tensor.symbols if s.isidentifier()}


def renamed(keys: Keys, source: BoundManifest, target: BoundManifest) -> tuple[dict[str, str | None], dict[str, Any]]:
    """`config` and `supply` of the map: keys renamed, dropped, and copied to a second key that says the same."""
    config: dict[str, str | None] = {}
    supply: dict[str, Any] = {}
    fed: set[str] = set()
    known = reads(target.manifest)
    for key in _own(keys, source):
        groups = _groups(keys, key)
        if not groups:
            if lookup(keys.config, key) is not _ABSENT and (_another(keys, key) or not _read(known, key)):
                config[key] = None
            continue
        names = [_name(group, key) for group in groups if not fed & set(group)]
        fed |= {name for group in groups for name in group}
        change, more = _moved(key, names)
        config |= change
        supply |= more
    # What nobody reads would stand in the way of what another key is written to.
    stray = (key for key in keys.config if key in fed and key not in config and not _groups(keys, key))
    return {**config, **dict.fromkeys(stray)}, supply


def _moved(key: str, names: list[str]) -> tuple[dict[str, str | None], dict[str, Any]]:
    """Where one key's value goes: under the first name unless it has its own, copied to the others."""
    if not names:
        return {key: None}, {}
    first = key if key in names else names[0]
    # An expression names a key as a symbol; a nested one has no symbol, and its copies are supplied by value later.
    copies = {name: {"expr": key} for name in names if name != first and key.isidentifier()}
    return ({} if first == key else {key: first}), copies


def _own(keys: Keys, source: BoundManifest) -> Iterable[str]:
    """Keys of the source: those that its config has, and of those that it lacks the first spelling."""
    seen: set[str] = set()
    yield from (key for key in source.manifest.config_reads if lookup(keys.config, key) is not _ABSENT)
    for key, rivals in spellings(source.manifest).items():
        present = lookup(keys.config, key) is not _ABSENT
        others = any(lookup(keys.config, rival) is not _ABSENT for rival in rivals)
        if present or not (others or seen & set(rivals)):
            seen.add(key)
            yield key


def _groups(keys: Keys, key: str) -> list[tuple[str, ...]]:
    """Spellings of each key of the target that is read for what this one is read for."""
    fields = [n for n, spelt in keys.mine.items() if key in spelt and n in keys.theirs]
    return list(dict.fromkeys(keys.theirs[n] for n in fields))


def _name(group: tuple[str, ...], key: str) -> str:
    """The spelling that a value is written under: its own, else the one that stands for itself in the config."""
    return key if key in group else preferred(group)


def preferred(group: tuple[str, ...], *, whole: bool = False) -> str:
    """Of several spellings the first that is not nested: every version of the class reads it.

    `whole`: of an object that another key may be nested in, the last.
    """
    plain = [name for name in group if "." not in name]
    return (plain[-1] if whole else plain[0]) if plain else group[0]


def _another(keys: Keys, key: str) -> bool:
    """Whether the target reads a key of this name for something else than the source does."""
    mine, theirs = ({n for n, spelt in side.items() if key in spelt} for side in (keys.mine, keys.theirs))
    return bool(mine and theirs and not mine & theirs)


def _read(known: Iterable[str], key: str) -> bool:
    """Whether a class reads a key, something in it, or something that it is in."""
    return any(k == key or k.startswith(f"{key}.") or key.startswith(f"{k}.") for k in known)
