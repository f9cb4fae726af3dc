"""`map draft`: a first map from a source's headers to a target manifest, held to `map check` as it is written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from blockaudit.checkpoint.values import close_files
from blockaudit.errors import RequestError
from blockaudit.manifest.load import LoadedManifest
from blockaudit.manifest.load import load as load_manifest
from blockaudit.migrate.check import check
from blockaudit.migrate.check.round_trip import declared_loss
from blockaudit.migrate.draft import Chosen, Drafted, chosen, container, draft_known, draft_shapes
from blockaudit.migrate.load import LoadedMap
from blockaudit.migrate.sides import Side, source_side
from blockaudit.migrate.source import open_source
from blockaudit.migrate.work import lay
from blockaudit.records.checkpoint import Checkpoint, Fault
from blockaudit.records.migration import MigrationMap
from blockaudit.rules import registry


class MapDraft(msgspec.Struct, frozen=True):
    """A drafted map, what it leaves open, and what `map check` says of it on this source.

    `undecided` and `refused` are lines: a place, and why. `hints` rest on names alone. `decided` is whether the map is
    whole and passes.
    """

    map: MigrationMap
    remarks: tuple[str, ...]
    undecided: tuple[str, ...]
    refused: tuple[str, ...]
    hints: tuple[str, ...]

    @property
    def decided(self) -> bool:
        return not (self.undecided or self.refused)


def draft_map(
    source: str | os.PathLike[str],
    target: str,
    *,
    source_manifest: str | None = None,
    source_config: str | Path | None = None,
) -> MapDraft:
    """The map that a source's headers and config prove, to the manifest `target` (a library id or a file).

    source_manifest: what the source's keys are, where it is not to be found out. source_config: JSON with its config,
    where that does not lie beside the weights. Nothing is guessed: what manifests and shapes do not decide has no rule.
    Raises RequestError.
    """
    name = os.fspath(source)
    try:
        loaded = load_manifest(target)
        checkpoint = open_source(name, container(name, source_manifest), source_config)
        if not checkpoint.readable or not checkpoint.tensors:
            raise RequestError(f"{name}: a header cannot be read, or no tensor is stored; inspect says which")
        found = chosen(source_manifest, checkpoint)
        base = _base(found, loaded, container(name, source_manifest), source_config, name)
        if found.loaded is None:
            drafted = draft_shapes(base, found.side.types, checkpoint.config, loaded)
        else:
            drafted = draft_known(base, found.side, loaded, found.prefix)
        laid = lay(LoadedMap(drafted.map, base.name, ""), _as_checked(found, checkpoint), loaded)
        return reported(drafted, found.remarks, check(laid))
    finally:
        close_files()


def _base(
    found: Chosen, target: LoadedManifest, files: MigrationMap, config: str | Path | None, source: str
) -> MigrationMap:
    """The map before any rule: its name, both manifests, and where the source's files and config are."""
    known = found.loaded.id if found.loaded is not None else None
    folder, name = os.path.split(str(config or ""))
    beside = bool(name) and os.path.realpath(folder or ".") == os.path.realpath(source)
    return replace(
        files,
        name=f"{_word(known or 'source')}_to_{_word(target.id)}",
        source=None if found.prefix else known,
        target=target.id,
        evidence=_EVIDENCE[known is None],
        config_file=name if beside else files.config_file,
    )


# By whether the source's manifest is not known.
_EVIDENCE = {
    False: "drafted by blockaudit from the two manifests and the headers of one source, whose sizes `supply` may hold",
    True: "drafted by blockaudit from the shapes of one source; its manifest is not known",
}


def _word(name: str) -> str:
    """A manifest's id, or the stem of its file, as a part of a name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", Path(name).stem if "." in name else name)[:60]


def _as_checked(found: Chosen, checkpoint: Checkpoint) -> Side:
    """The source as `map check` will see it, which knows what the map names."""
    known = found.loaded is not None and not found.prefix
    return found.side if known else source_side(None, checkpoint)


def reported(drafted: Drafted, remarks: tuple[str, ...], flaws: Iterable[Fault]) -> MapDraft:
    """What is told: once each, the draft's own words before the check's."""
    told = {_bare(name) for one in drafted.undecided for name in (*one.subject.split(", "), *one.sources)}
    refused = [
        f"{flaw.rule}: {flaw.message}"
        for flaw in flaws
        if not declared_loss(flaw)
        and registry.find(flaw.rule).rule.severity != "note"
        and not (flaw.rule == "map-not-total" and _bare(flaw.file) in told)
    ]
    undecided = [f"{one.subject}: {one.why}" for one in drafted.undecided]
    return MapDraft(drafted.map, (*remarks, *drafted.remarks), tuple(undecided), tuple(dict.fromkeys(refused)),
                    drafted.hints)  # fmt: skip


def _bare(template: str) -> str:
    """A template whatever its axes are called, numbers in their place, and the rank in front."""
    template = re.sub(r"^\d+/", "", template)
    return re.sub(r"\{\w+(\+\d+)?\}|(?<=[._])\d+(?=\.|$)", "#", template)
