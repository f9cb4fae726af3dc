"""`inspect` and `manifest draft`: what is stored, declared and executed, reconciled."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from math import prod
from typing import TYPE_CHECKING, Any

from msgspec import convert
from msgspec.structs import replace

from blockaudit import __version__
from blockaudit.checkpoint import storage
from blockaudit.checkpoint.files import gc_paused
from blockaudit.checkpoint.quantization.view import logical_view
from blockaudit.checkpoint.source import models_of as parts_of
from blockaudit.checkpoint.source import open_checkpoint, open_part
from blockaudit.checkpoint.values import close_files
from blockaudit.errors import RequestError
from blockaudit.manifest.library import Choice, Nearest, choose, effective_config, speaks_of
from blockaudit.manifest.load import LoadedManifest, library
from blockaudit.pipeline.adapter import on_base
from blockaudit.pipeline.picture import pictured
from blockaudit.pipeline.places import placed
from blockaudit.pipeline.suppress import Suppression, settled, suppression
from blockaudit.reconcile import contract, expand, inside
from blockaudit.reconcile.assemble import Execute, reconcile, trouble
from blockaudit.reconcile.audit import Audit, NonFiniteTensor
from blockaudit.reconcile.gguf import citing
from blockaudit.reconcile.gguf.config import configured
from blockaudit.records.bound import BoundManifest
from blockaudit.records.checkpoint import Checkpoint, TensorHeader
from blockaudit.records.contract import Executed
from blockaudit.records.manifest import Manifest
from blockaudit.records.report import Finding, ManifestChoice, Report, Subject, Verdict
from blockaudit.records.suppression import Waiver
from blockaudit.rules import (
    documentation,
    registry,
    t118_parameter_unconsumed,
    t119_residual_shape_mismatch,
    t120_graph_unclassified,
    t133_dropout_active_in_eval,
)

if TYPE_CHECKING:
    from blockaudit.manifest.draft import Draft

LEVELS = ("headers", "values", "graph")
Progress = Callable[[str, int, int], None]


def inspect(
    source: str | os.PathLike[str] | None,
    *,
    part: str | None = None,
    base: str | os.PathLike[str] | None = None,
    manifest: str | None = None,
    level: str = "headers",
    candidate: str | None = None,
    trust_remote_code: bool = False,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    strict: bool = False,
    allow_unverified: bool = False,
    waivers: Sequence[Waiver] = (),
    baseline: str | os.PathLike[str] | None = None,
    write_baseline: str | os.PathLike[str] | None = None,
    pictures: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Reconcile what a manifest declares with what a checkpoint stores.

    source: a folder, a weight file, a shard index or hf://org/name. part: of a folder of several modules (diffusers),
    the sub-folder of the text model to audit; `models_of` tells them. base: the model that a PEFT adapter (source) is
    added to, so that their merged function is audited. manifest: a library id or a file; by default chosen
    from config.json, else from the keys. level: `headers`, `values`, `graph` (the operators that the model code runs;
    needs torch and transformers) or `values,graph`. select, ignore: rule codes, names or prefixes. strict: warnings
    reject. candidate: `FILE.py:NAME`, a user's own module (its code is run) that `graph` runs in place of the class
    that config.json names. With a source of None the contract is what it executes alone: accepted where the graph was
    read, else unverified. trust_remote_code: modelling code in the source's own folder may be run, where config.json
    takes its class from it; nothing is ever downloaded.
    allow_unverified: the verdict stands, for the caller to treat as accepted. waivers, baseline: findings that do not
    count, in `suppressed`; write_baseline: a file that is to hold the findings of this audit. Nothing else is written,
    and without trust_remote_code nothing of the source is executed. pictures: the report carries what a page with
    pictures shows. Raises RequestError where nothing can be audited.
    """
    del allow_unverified
    levels = _levels(level)
    level = ",".join(name for name in LEVELS[1:] if name in levels) or LEVELS[0]
    rules = registry.chosen(select, ignore)
    by = suppression(waivers, baseline, write_baseline)
    if candidate is not None and "graph" not in levels:
        raise RequestError("--candidate is what --level graph runs: add --level graph")
    if source is None:
        if candidate is None or manifest is not None or "values" in levels:
            raise RequestError("without SOURCE there is --candidate FILE.py:NAME at --level graph alone")
        needs_torch()
        return _alone(candidate, rules, strict, by)
    for one in (source, base):
        if trust_remote_code and one is not None and storage.is_remote(os.fspath(one)):
            raise RequestError(f"{os.fspath(one)}: --trust-remote-code runs no code from a hub: download it first")
    whole = "values" in levels
    try:
        checkpoint, adapter = opened(os.fspath(source), part, whole=whole), None
        if base is not None:
            checkpoint, adapter = on_base(checkpoint, os.fspath(base), partial(opened, whole=whole))
        if "graph" in levels:
            needs_class(checkpoint, "--level graph runs")
        choice = choose(manifest, checkpoint) if is_model(checkpoint) else Nearest(None, 0.0)
        streamed = ([checkpoint] if adapter is None else [checkpoint, adapter.low_rank()]) if whole else []
        non_finite = tuple(found for one in streamed for found in _non_finite(one, progress))
        with gc_paused():
            audit, loaded = audited(checkpoint, choice, level, non_finite, candidate, trust_remote_code)
            audit = adapter.held(audit) if adapter is not None else audit
            findings = citing.findings(findings_of(rules, audit, loaded), audit.checkpoint.container)
            chosen = choice_of(choice, loaded)
            report = settled(lambda held: _report(audit, chosen, held, strict), findings, rules, checkpoint.source, by)
            return pictured(report, audit, loaded) if pictures else report
    finally:
        close_files()


def models_of(source: str | os.PathLike[str]) -> tuple[str, ...]:
    """The sub-folders of a local folder of several modules (diffusers, sentence-transformers) that `inspect` audits.

    Those text models that the library speaks of, else all; empty for a folder that is a model itself.
    """
    return parts_of(os.fspath(source), speaks_of)


def opened(source: str, part: str | None = None, *, whole: bool = False) -> Checkpoint:
    """SOURCE, or one model of it where it is a folder of several modules. Raises RequestError."""
    if part is not None:
        return open_part(source, part, whole=whole)
    return open_checkpoint(source, whole=whole, speaks=speaks_of)


def draft(
    source: str | os.PathLike[str], *, pin: bool = False, level: str | None = None, candidate: str | None = None
) -> Draft:
    """The manifest that a source itself supports; `pin` freezes its config values.

    level: `headers` (keys, shapes and config.json), or `graph`: the manifest of the library's family is drafted, and
    only where the operators that its class runs say the same in every field. By default `graph` where torch is
    installed and the graph confirms the draft, else `headers`, with a remark. candidate: `FILE.py:NAME`, a user's own
    module that has to confirm the manifest of the library's family in place of the class that config.json names.
    Raises RequestError where there is nothing to draft from, or where a level that was asked for cannot be had.
    """
    if level not in (None, "headers", "graph"):
        raise RequestError(f"unknown --level {level!r}: expected headers or graph")
    if candidate is not None and level == "headers":
        raise RequestError("--candidate is what --level graph runs: leave --level headers out")
    level = "graph" if candidate is not None else level
    checkpoint = open_checkpoint(os.fspath(source))
    try:
        needs_class(checkpoint, "a manifest is drafted from")
        return _draft(checkpoint, pin, level, candidate)
    finally:
        close_files()


def _draft(checkpoint: Checkpoint, pin: bool, level: str | None, candidate: str | None) -> Draft:
    from blockaudit.manifest.draft import Draft
    from blockaudit.manifest.draft import draft as drafted

    choice = choose(None, checkpoint)
    loaded = choice.loaded if isinstance(choice, Choice) else None
    if level == "headers" or (level is None and not _can_execute()):
        return drafted(checkpoint, loaded, pin)
    try:
        executed = loaded or (_of_its_class(checkpoint) if candidate is None else None)
        _executed_as_declared(checkpoint, executed, candidate)
    except RequestError as error:
        if level is not None:
            raise
        found = drafted(checkpoint, loaded, pin)
        return Draft(found.manifest, (*found.remarks, f"drafted from headers: {error}"))
    found = drafted(checkpoint, executed, pin)
    return Draft(replace(found.manifest, witness="graph"), found.remarks)


def _of_its_class(checkpoint: Checkpoint) -> LoadedManifest | None:
    """A manifest of a family that the library lacks, drafted from the class that config.json names.

    None where there is no config.json. Raises RequestError where the class gives no whole manifest.
    """
    config = effective_config(checkpoint.config)
    if config is None:
        return None
    needs_torch()
    from blockaudit.graph.drafting.catalog import Unfit
    from blockaudit.graph.drafting.source import of_config

    try:
        data = of_config(config)
    except Unfit as error:
        raise RequestError(f"{checkpoint.source}: its class gives no whole manifest: {error}") from error
    return LoadedManifest(convert(data, Manifest), config["model_type"], "")


def _executed_as_declared(checkpoint: Checkpoint, loaded: LoadedManifest | None, candidate: str | None = None) -> None:
    """Raises RequestError unless the executed graph confirms the manifest."""
    config = effective_config(checkpoint.config)
    if loaded is None or config is None:
        raise RequestError(
            f"{checkpoint.source}: no family of the library to read the graph against; "
            "--level headers drafts what keys, shapes and config.json show"
        )
    execute = _executor(config) if candidate is None else _candidate(candidate, checkpoint.source)
    reconciled = reconcile(checkpoint, loaded.manifest, config, whole=False, execute=execute)
    executed = reconciled.executed
    wrong = [r.field for r in reconciled.rows if "executed" in r.statements and r.agrees is False]
    if executed is None or executed.failure or executed.unread or wrong:
        reason = (executed.failure or ", ".join(executed.unread)) if executed else "no graph"
        raise RequestError(
            f"{checkpoint.source}: the executed graph does not confirm the manifest of {loaded.id}: "
            f"{', '.join(wrong) or reason}"
        )


def audited(
    checkpoint: Checkpoint,
    choice: Choice | Nearest,
    level: str,
    non_finite: tuple[NonFiniteTensor, ...],
    candidate: str | None = None,
    trusted: bool = False,
) -> tuple[Audit, LoadedManifest | None]:
    """The checkpoint under the manifest chosen, as every witness that the level asks for sees it."""
    if isinstance(choice, Choice):
        checkpoint = configured(checkpoint, choice.loaded.manifest)
    config = effective_config(checkpoint.config)
    code = checkpoint.folder if trusted else None
    if isinstance(choice, Nearest):
        alone = _unmanifested(checkpoint, config, candidate, code) if "graph" in level else None
        quantised = logical_view(checkpoint, config).quantised
        return (
            Audit(checkpoint, config, level, None, choice.id, choice.score, non_finite, alone, quantised=quantised),
            None,
        )
    # Families whose keys fit equally well are told apart by what else they say of this checkpoint.
    candidates = [choice.loaded, *(library(name) for name in choice.also)]
    whole = "values" in level
    executes = "graph" in level and config is not None
    loaded, reconciled = candidates[0], None
    if len(candidates) > 1 or not executes:
        tried = [(loaded, reconcile(checkpoint, loaded.manifest, config, whole=whole)) for loaded in candidates]
        loaded, reconciled = min(tried, key=lambda item: trouble(item[1]))
    if config is not None and executes:
        execute = _executor(config, code) if candidate is None else _candidate(candidate, checkpoint.source)
        reconciled = reconcile(checkpoint, loaded.manifest, config, whole=whole, execute=execute)
    return Audit(checkpoint, config, level, reconciled, None, 0.0, non_finite), loaded


def _levels(asked: str) -> set[str]:
    """The levels asked for; `values` and `graph` each include `headers`."""
    levels = {part.strip() for part in asked.split(",")}
    if not levels <= set(LEVELS):
        raise RequestError(f"unknown level {asked!r}: expected {', '.join(LEVELS)}, or several with commas")
    return levels


def needs_class(checkpoint: Checkpoint, what: str) -> None:
    """Raises RequestError where there is no config.json to have a class, or names, of (GGUF)."""
    if checkpoint.container is not None:
        raise RequestError(
            f"{checkpoint.source}: {what} the model class and the names of a Hugging Face checkpoint, and a GGUF file "
            "has neither: audit it at --level headers, or the checkpoint that it was converted from"
        )


def _can_execute() -> bool:
    return all(find_spec(name) is not None for name in ("torch", "transformers"))


def needs_torch() -> None:
    """Raises RequestError where torch or transformers is not installed."""
    if not _can_execute():
        raise RequestError("running a model needs torch and transformers: pip install 'blockaudit[torch]'")


def _candidate(candidate: str, source: str) -> Execute:
    """The executed witness for a user's own module."""
    needs_torch()
    from blockaudit.graph.candidate import recordings
    from blockaudit.graph.witness import testify_candidate

    low, exact, training = recordings(candidate, source)
    return lambda bound: testify_candidate(bound, low, exact, training)


def _alone(candidate: str, rules: tuple[registry.Entry, ...], strict: bool, by: Suppression) -> Report:
    """The contract as the module executes it: accepted where the graph was read, else unverified."""
    from blockaudit.graph.candidate import recordings
    from blockaudit.graph.witness import testify_alone

    low, exact, training = recordings(candidate, None)
    executed = testify_alone(low, exact, training)
    asked = {entry.rule.code for entry in rules}
    speak = (
        t118_parameter_unconsumed, t119_residual_shape_mismatch, t120_graph_unclassified, t133_dropout_active_in_eval,
    )  # fmt: skip
    findings = registry.ordered(f for rule in speak if rule.RULE.code in asked for f in rule.of(executed))
    rows = contract.reconcile([executed.testimony])
    unread = bool(executed.failure or executed.unread or not rows)

    def report(held: tuple[Finding, ...]) -> Report:
        return Report(
            kind="inspection",
            verdict=verdict_of(held, strict) or ("unverified" if unread else "accepted"),
            level="graph",
            subject=_module(candidate, exact.sizes),
            manifest=None,
            contract=rows,
            findings=held,
            not_checked=tuple(r.field for r in rows),
            version=__version__,
            rules=documentation.texts(),
        )

    return settled(report, findings, rules, candidate, by)


def _module(candidate: str, sizes: dict[str, tuple[int, ...]]) -> Subject:
    """The module's parameters: it stores nothing, so that there are no bytes and no dtypes to tell of."""
    return Subject(candidate, "module", (), len(sizes), sum(prod(s) for s in sizes.values()), 0, {})


def _executor(config: dict[str, Any], code: str | None = None) -> Execute:
    """The executed witness for this config; code is the folder whose own modelling code may be run.

    Raises RequestError where torch and transformers are not installed.
    """
    needs_torch()
    return lambda bound: _testified(bound, config, code)


def _testified(bound: BoundManifest | None, config: dict[str, Any], code: str | None) -> Executed:
    """What the class that config names executes, held against a manifest or for itself."""
    from blockaudit.graph.cache import remembered

    def run() -> Executed:
        from blockaudit.graph.witness import testify, testify_class

        return testify_class(config, code) if bound is None else testify(bound, config, code)

    # A checkpoint's own code is anybody's: only what the installed library runs is remembered.
    return remembered(bound, config, run) if code is None else run()


def _unmanifested(
    checkpoint: Checkpoint, config: dict[str, Any] | None, candidate: str | None, code: str | None
) -> Executed | None:
    """What is executed where no manifest speaks of it."""
    needs_torch()
    if candidate is not None:
        from blockaudit.graph.candidate import recordings
        from blockaudit.graph.witness import testify_alone

        return testify_alone(*recordings(candidate, checkpoint.source))
    return _testified(None, config, code) if config is not None and is_model(checkpoint) else None


def findings_of(rules: tuple[registry.Entry, ...], audit: Audit, loaded: LoadedManifest | None) -> tuple[Finding, ...]:
    """What the rules find; under a pinned manifest the tensors are held to what config.json says now as well."""
    found = registry.run(rules, audit)
    if loaded is None or audit.reconciled is None or audit.config is None or not audit.reconciled.declared.pinned:
        return placed(inside.as_stored(found, audit), audit, loaded)
    whole = "values" in audit.level
    live = reconcile(audit.checkpoint, loaded.manifest, audit.config, whole=whole, pins=False)
    also = registry.run(rules, replace(audit, reconciled=live))
    # What the pinned contract already names is not named again from the other side, by key or by field.
    named, subjects = {(f.code, f.subject) for f in found}, {f.subject for f in found}
    owner = {k: t.expected.owner for t in audit.reconciled.binding.templates for k in expand.keys(t.expected)}
    fresh = [
        f
        for f in also
        if (f.code, f.subject) not in named and not (f.tensors and all(owner.get(k) in subjects for k in f.tensors))
    ]
    return placed(inside.as_stored(registry.ordered([*found, *fresh]), audit), audit, loaded)


def _non_finite(checkpoint: Checkpoint, progress: Progress | None) -> Iterable[NonFiniteTensor]:
    """Every tensor with a NaN or an infinity; streams all bytes."""
    from blockaudit.checkpoint.nonfinite import count_nonfinite

    total, done = sum(t.nbytes for t in checkpoint.tensors.values()), 0
    exponents = logical_view(checkpoint).exponents
    for key, header in checkpoint.tensors.items():
        found = count_nonfinite(checkpoint, key, "F8_E8M0" if key in exponents else "")
        if found.count:
            yield NonFiniteTensor(key, found.count, header.elements, found.first)
        done += header.nbytes
        if progress is not None:
            progress("values", done, total)


def is_model(checkpoint: Checkpoint) -> bool:
    """Whether the tensors are a model's at all: a training state or an adapter has no block contract to reconcile."""
    return not any(f.rule in ("sharded-training-state", "adapter-only") for f in checkpoint.faults)


def _report(audit: Audit, chosen: ManifestChoice | None, findings: tuple[Finding, ...], strict: bool) -> Report:
    alone = contract.reconcile([audit.alone.testimony]) if audit.alone is not None else ()
    rows = audit.reconciled.rows if audit.reconciled else alone
    return Report(
        kind="inspection",
        verdict=_verdict(audit, findings, strict),
        level=audit.level,
        subject=subject_of(audit.checkpoint, audit.reconciled.binding.tensors if audit.reconciled else None),
        manifest=chosen,
        contract=rows,
        findings=findings,
        not_checked=tuple(r.field for r in rows if r.agrees is None),
        version=__version__,
        rules=documentation.texts(),
    )


def _verdict(audit: Audit, findings: tuple[Finding, ...], strict: bool) -> Verdict:
    """Rejected by any error; unverified where something that this level needs could not be known; else accepted."""
    if (verdict := verdict_of(findings, strict)) is not None:
        return verdict
    if audit.reconciled is None or audit.config is None or registry.leaves_unverified(findings):
        return "unverified"
    if any(r.required and not r.known for r in audit.reconciled.rows):
        return "unverified"
    return "accepted"


def verdict_of(findings: tuple[Finding, ...], strict: bool) -> Verdict | None:
    """`rejected` where any finding rejects."""
    rejects = any(f.severity == "error" or (strict and f.severity == "warning") for f in findings)
    return "rejected" if rejects else None


def subject_of(checkpoint: Checkpoint, logical: Mapping[str, TensorHeader] | None = None) -> Subject:
    """The thing audited, counted. `logical` are its tensors unpacked, where they are known."""
    origin = storage.origin(checkpoint.folder)
    dtypes: dict[str, int] = {}
    # 90,000 tensors have a dozen shapes: what depends on the shape alone is worked out once for each.
    kinds = Counter((header.dtype, header.shape) for header in checkpoint.tensors.values())
    shapes = Counter(header.shape for header in (checkpoint.tensors if logical is None else logical).values())
    for (dtype, _), count in kinds.items():
        dtypes[dtype] = dtypes.get(dtype, 0) + count
    return Subject(
        source=checkpoint.source,
        format=checkpoint.format,
        files=tuple(f.name for f in checkpoint.files),
        tensors=len(checkpoint.tensors),
        # A shape that no memory holds is a fault, and no number of parameters.
        parameters=sum(held * count for shape, count in shapes.items() if 0 < (held := prod(shape)) < 2**64),
        bytes=sum(header.nbytes for header in checkpoint.tensors.values()),
        dtypes=dict(sorted(dtypes.items())),
        revision=origin.revision if origin else "",
        hashes={f.name: origin.hashes[f.name] for f in checkpoint.files if f.name in origin.hashes} if origin else {},
        read=origin.read if origin else 0,
        base=checkpoint.base,
    )


def choice_of(choice: Choice | Nearest, loaded: LoadedManifest | None) -> ManifestChoice | None:
    """The manifest as the report names it; None where there is none."""
    if loaded is None or isinstance(choice, Nearest):
        return None
    return ManifestChoice(
        loaded.manifest.architecture_id, loaded.id, choice.chosen_by, choice.confidence, loaded.sha256
    )
