"""`manifest draft`: the manifest that a checkpoint itself supports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from msgspec import UNSET, structs

from blockaudit.errors import RequestError
from blockaudit.manifest import grammar
from blockaudit.manifest.draft_structure import structure
from blockaudit.manifest.library import effective_config
from blockaudit.manifest.load import LoadedManifest
from blockaudit.manifest.values import Resolver
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.manifest import Bound, Manifest, Struct


@dataclass(frozen=True, slots=True)
class Draft:
    """A drafted manifest, and remarks on what was chosen among several."""

    manifest: Manifest
    remarks: tuple[str, ...] = ()


def draft(checkpoint: Checkpoint, loaded: LoadedManifest | None, pin: bool) -> Draft:
    """The library's manifest as SOURCE has it; without one, what headers and config.json say by themselves."""
    if not checkpoint.readable:
        raise RequestError(f"{checkpoint.source}: a header cannot be read; inspect says which, and nothing is drafted")
    if loaded is None:
        manifest, remarks = structure(checkpoint)
    else:
        manifest, remarks = structs.replace(loaded.manifest, witness="headers"), []
    if pin:
        manifest, left = _pinned(manifest, checkpoint)
        remarks += left
    return Draft(manifest, tuple(remarks))


def encode(manifest: Manifest) -> str:
    """The manifest as a file: defaults left out, one field a line, the same bytes every time."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1).decode() + "\n"


def _pinned(manifest: Manifest, checkpoint: Checkpoint) -> tuple[Manifest, list[str]]:
    config = effective_config(checkpoint.config)
    if config is None:
        raise RequestError(f"{checkpoint.source}: --pin freezes what config.json says, and there is none to read")
    pins = _Pins(manifest, config)
    frozen: Manifest = pins.freeze(manifest, "")
    return frozen, pins.left


class _Pins:
    """Freezes every bound value at what it is under one config."""

    def __init__(self, manifest: Manifest, config: Mapping[str, Any]) -> None:
        self._resolver = Resolver(manifest.dims, config, pins=True)
        self.left: list[str] = []

    def freeze(self, value: Any, place: str) -> Any:
        if isinstance(value, Bound):
            return self._bound(value, place)
        if isinstance(value, Struct):
            changed = {
                name: self._when(inner, place)
                if name.endswith("when")
                else self.freeze(inner, f"{place}.{name}".lstrip("."))
                for name in value.__struct_fields__
                if (inner := getattr(value, name)) is not UNSET
            }
            return structs.replace(value, **changed)
        if isinstance(value, dict):
            entries = cast("dict[str, Any]", value)
            return {name: self.freeze(inner, f"{place}.{name}") for name, inner in entries.items()}
        if isinstance(value, list):
            items = cast("list[Any]", value)
            return [self.freeze(inner, place) for inner in items]
        return value

    def _bound(self, value: Bound, place: str) -> Bound:
        resolved = self._resolver.value(value)
        if not resolved.known:
            self.left.append(f"{place}: has no value under this config.json and is not pinned")
            return value
        return structs.replace(value, pinned=resolved.value)

    def _when(self, when: Any, place: str) -> Any:
        # A condition on the layer number has no one value; the dims that it reads are pinned.
        if isinstance(when, str) and "l" not in grammar.symbols(when):
            return self._bound(Bound(expr=when), f"{place}.when")
        return self.freeze(when, f"{place}.when")
