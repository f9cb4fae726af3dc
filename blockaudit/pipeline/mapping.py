"""`map check`: a migration map held to its two manifests, and to a source's headers where there is one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from blockaudit import __version__
from blockaudit.checkpoint.values import close_files
from blockaudit.manifest.load import LoadedManifest
from blockaudit.manifest.load import load as load_manifest
from blockaudit.migrate.check import check
from blockaudit.migrate.check.round_trip import declared_loss
from blockaudit.migrate.imagined import imagined
from blockaudit.migrate.load import InvalidMap, LoadedMap, load
from blockaudit.migrate.reverse import reversed_map
from blockaudit.migrate.rows import rows
from blockaudit.migrate.sides import Side, source_side
from blockaudit.migrate.source import open_source
from blockaudit.migrate.work import Work, lay
from blockaudit.pipeline.map_places import MapPlaces
from blockaudit.pipeline.reporting import Judging, subject_of
from blockaudit.pipeline.suppress import settled, suppression
from blockaudit.records.checkpoint import Checkpoint, Fault
from blockaudit.records.report import Finding, ManifestChoice, Report, Subject, Verdict
from blockaudit.records.suppression import Waiver
from blockaudit.rules import documentation, registry


class Checked(msgspec.Struct, frozen=True):
    """A map, what was found of it, and the source that it was laid on. `works` are empty where there was nothing."""

    name: str
    loaded: LoadedMap | None
    works: tuple[Work, ...]
    checkpoint: Checkpoint | None
    flaws: tuple[Fault, ...]


def check_map(
    map_: str,
    source: str | os.PathLike[str] | None = None,
    *,
    config: str | Path | None = None,
    reverse: bool = False,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    strict: bool = False,
    allow_unverified: bool = False,
    waivers: Sequence[Waiver] = (),
    baseline: str | os.PathLike[str] | None = None,
    write_baseline: str | os.PathLike[str] | None = None,
) -> Report:
    """Prove a migration map on headers alone.

    map_: a library id or a file. source: the checkpoint that it is to move, read header by header; without it the
    source is what the map's source manifest expects by default. config: a JSON file that holds the source's config,
    where it does not lie beside the weights. reverse: the way back. The report is of kind `map`: accepted, rejected, or
    unverified where there is neither a source manifest nor a source. Raises RequestError.
    """
    del allow_unverified
    how = Judging(registry.chosen(select, ignore), strict, suppression(waivers, baseline, write_baseline))
    try:
        done = checked(map_, source, config, reverse=reverse)
        return reported("map", done, how)
    finally:
        close_files()


def checked(
    name: str, source: str | os.PathLike[str] | None, config: str | Path | None = None, *, reverse: bool
) -> Checked:
    """The map laid on what there is to lay it on. Raises RequestError."""
    try:
        loaded = load(name)
        loaded = reversed_map(loaded) if reverse else loaded
    except InvalidMap as error:
        return Checked(name, None, (), None, (Fault("map-invalid", name, str(error), evidence=name),))
    # The manifests of both ends are looked at before any file of the source is.
    target = load_manifest(loaded.map.target)
    mine = None if loaded.map.source is None else load_manifest(loaded.map.source)
    checkpoint = None if source is None else open_source(os.fspath(source), loaded.map, config)
    if checkpoint is not None and not checkpoint.readable:
        # What could not be read would look like keys that are missing.
        return Checked(name, loaded, (), checkpoint, ())
    works = tuple(lay(loaded, side, target) for side in _sides(loaded, mine, checkpoint, target))
    if not works:
        # There is nothing to lay it on; what is wrong with it on any source is wrong here too.
        flaws = lay(loaded, Side(None, None, {}, {}, None), target).flaws
        return Checked(name, loaded, (), None, tuple(flaw for flaw in flaws if flaw.rule == "map-invalid"))
    return Checked(name, loaded, works, checkpoint, _once(flaw for work in works for flaw in check(work)))


def _sides(
    loaded: LoadedMap, mine: LoadedManifest | None, checkpoint: Checkpoint | None, target: LoadedManifest
) -> list[Side]:
    if checkpoint is not None:
        return [source_side(mine, checkpoint)]
    return [] if mine is None else list(imagined(mine, loaded.map, target))


def _once(flaws: Iterable[Fault]) -> tuple[Fault, ...]:
    """Flaws by rule, place and message: several imagined sources show the same one."""
    return tuple({(f.rule, f.file, f.message): f for f in flaws}.values())


def findings(done: Checked, rules: Sequence[registry.Entry]) -> tuple[Finding, ...]:
    """The flaws as findings of their rules; a loss that the map declares is a warning."""
    asked = {entry.rule.code for entry in rules}
    found: list[Finding] = []
    places = MapPlaces(done.name)
    for flaw in done.flaws:
        rule = registry.find(flaw.rule).rule
        if rule.code in asked:
            said = rule.finding(
                flaw.file,
                flaw.message,
                tensors=flaw.tensors,
                expected=flaw.expected,
                observed=flaw.observed,
                evidence=flaw.evidence,
                severity="warning" if declared_loss(flaw) else None,
            )
            found.append(replace(said, places=places.of(flaw)))
    faults = () if done.checkpoint is None else done.checkpoint.faults
    for fault in faults:
        # A source that cannot be read whole is not one that a map can be proved on.
        rule = registry.find(fault.rule).rule
        if rule.code in asked and rule.code[0] in "FC":
            found.append(rule.finding(fault.file, fault.message, tensors=fault.tensors, evidence=fault.evidence))
    return registry.ordered(found)


def reported(kind: str, done: Checked, how: Judging) -> Report:
    """The report of a map that was checked."""
    contract = rows(done.works[0]) if done.works else ()

    def report(held: tuple[Finding, ...]) -> Report:
        otherwise: Verdict = "accepted" if done.works else "unverified"
        return Report(
            kind=kind,
            verdict=how.rejected(held) or otherwise,
            level="headers",
            subject=_subject(done),
            manifest=_target(done),
            contract=contract,
            findings=held,
            not_checked=(*(r.field for r in contract if r.agrees is None), *_open(done)),
            version=__version__,
            rules=documentation.texts(),
        )

    return settled(report, findings(done, how.rules), how.rules, done.name, how.by)


def _subject(done: Checked) -> Subject:
    if done.checkpoint is not None:
        return subject_of(done.checkpoint)
    return Subject(done.name, "migration-map", (), 0, 0, 0, {})


def _target(done: Checked) -> ManifestChoice | None:
    """The target's manifest: it is what the map is held to."""
    if not done.works:
        return None
    loaded = done.works[0].target.loaded
    assert loaded is not None
    return ManifestChoice(loaded.manifest.architecture_id, loaded.id, "flag", 1.0, loaded.sha256)


def _open(done: Checked) -> tuple[str, ...]:
    """What no header could decide: without a source manifest nobody says what a key of the source is."""
    if done.works and done.works[0].source.slots:
        return ()
    return ("map.norm_slots", "map.roles", "map.axes_of_square_matrices") if done.works else ("map",)
