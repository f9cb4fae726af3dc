"""Which manifest the source of a draft has: named, or the only one whose every key it stores in its shape."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec
from msgspec.structs import replace

from blockaudit import resources
from blockaudit.manifest.library import Choice, choose
from blockaudit.manifest.load import LoadedManifest, library, load
from blockaudit.migrate.load import library as library_map
from blockaudit.migrate.sides import Side, source_side
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.migration import MigrationMap

_RANK = "{r}"
_CONFIG = "config.json"


class Chosen(msgspec.Struct, frozen=True):
    """The source as a side, its manifest and what stands before each of its keys; None: no manifest is known.

    `remarks` say how it was chosen.
    """

    side: Side
    loaded: LoadedManifest | None
    prefix: str = ""
    remarks: tuple[str, ...] = ()


def container(source: str, manifest: str | None) -> MigrationMap:
    """An empty map that says how the source lies in files: cut over ranks or not, and where its config is.

    As the library's maps from that manifest say; where none is named, as any of them does whose files are there.
    """
    known = [library_map(name).map for name in resources.map_ids()]
    known = [m for m in known if manifest is None or m.source == manifest]
    ranks = next((m.ranks for m in known if m.ranks is not None and _are_there(source, m.ranks)), None)
    files = [m.config_file for m in known if m.config_file != _CONFIG]
    own = os.path.isfile(os.path.join(source, _CONFIG))
    there = next((name for name in files if not own and os.path.isfile(os.path.join(source, name))), _CONFIG)
    return MigrationMap(schema="blockaudit/map/1", name="draft", target="", ranks=ranks, config_file=there)


def _are_there(source: str, pattern: str) -> bool:
    """Whether a folder holds the file of a rank, however wide the number is written."""
    head, _, tail = pattern.partition("/")
    try:
        names = os.listdir(source) if os.path.isdir(source) else []
    except OSError:
        return False
    found = [name for name in names if fnmatchcase(name, head.replace(_RANK, "[0-9]*"))]
    return any(not tail or os.path.isfile(os.path.join(source, name, tail)) for name in found)


def chosen(named: str | None, checkpoint: Checkpoint) -> Chosen:
    """The manifest of the source by flag, else by config and keys, else by keys alone. Raises RequestError."""
    if named is not None:
        loaded = load(named)
        return Chosen(source_side(loaded, checkpoint), loaded)
    choice = choose(None, checkpoint)
    first = [choice.loaded] if isinstance(choice, Choice) else []
    fitting = [one for loaded in first if (one := _fitting(loaded, checkpoint, "config.json and its keys")) is not None]
    if not fitting:
        layouts = (library(name) for name in resources.layout_ids())
        found = (_fitting(loaded, checkpoint, "its keys and their shapes") for loaded in layouts)
        fitting = [one for one in found if one is not None]
    if len(fitting) == 1:
        return fitting[0]
    wrapped = _wrapped(first[0], checkpoint) if first and not fitting else None
    return wrapped or _unknown(checkpoint, fitting)


def _fitting(loaded: LoadedManifest, checkpoint: Checkpoint, by: str) -> Chosen | None:
    side = source_side(loaded, checkpoint)
    return Chosen(side, loaded, remarks=(f"the source is taken for {loaded.id}, by {by}",)) if _fits(side) else None


def _unknown(checkpoint: Checkpoint, fitting: Sequence[Chosen]) -> Chosen:
    ids = ", ".join(one.loaded.id for one in fitting if one.loaded is not None)
    why = (
        f"the source's keys are those of {ids} alike: say which with --source-manifest"
        if ids
        else "no manifest of the library has its keys: name it with --source-manifest; until then shapes decide"
    )
    types = source_side(None, checkpoint).types
    return Chosen(Side(None, None, {}, types, checkpoint.config), None, remarks=(why,))


def _fits(side: Side) -> bool:
    """Whether every key that the manifest needs is stored, in its shape; of rank files, stored."""
    needed = {key: slot for key, slot in side.slots.items() if slot.needed}
    ranked = any(key[:1].isdigit() and "/" in key for key in side.types)
    return bool(needed) and all(
        key in side.types and (ranked or _shaped(side.types[key].shape, slot.expected.shape))
        for key, slot in needed.items()
    )


def _shaped(found: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(found) == len(wanted) and all(w in (None, f) for f, w in zip(found, wanted, strict=True))


def _wrapped(loaded: LoadedManifest, checkpoint: Checkpoint) -> Chosen | None:
    """The source where its keys are those of the family that config.json names, all of them behind one prefix."""
    words = next(iter(checkpoint.tensors), "").split(".")
    for many in range(1, len(words)):
        prefix = ".".join(words[:many]) + "."
        if not all(key.startswith(prefix) for key in checkpoint.tensors):
            return None
        bare = {key.removeprefix(prefix): header for key, header in checkpoint.tensors.items()}
        side = source_side(loaded, replace(checkpoint, tensors=bare))
        if _fits(side):
            types = {prefix + key: found for key, found in side.types.items()}
            note = f"the source is taken for {loaded.id}, by config.json and its keys behind {prefix}"
            return Chosen(replace(side, types=types), loaded, prefix, (note,))
    return None
