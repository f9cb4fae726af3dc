"""The conductor: source and manifest in, report out. Straight lines, no branch per family."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from blockaudit import __version__
from blockaudit.checkpoint.source import open_checkpoint
from blockaudit.checkpoint.values import close_files
from blockaudit.errors import RequestError
from blockaudit.manifest.bind import bind, classes, config_classes
from blockaudit.manifest.library import Choice, choose, effective_config
from blockaudit.reconcile import contract, dims, match, norms, shapes, testimony, ties
from blockaudit.reconcile.audit import Audit, NonFiniteTensor, Reconciled
from blockaudit.records.binding import Binding
from blockaudit.records.bound import BoundManifest
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.manifest import Manifest
from blockaudit.records.report import Finding, ManifestChoice, Report, Subject, Verdict
from blockaudit.rules import registry

LEVELS = ("headers", "values")
Progress = Callable[[str, int, int], None]


def inspect(
    source: str | os.PathLike[str],
    *,
    manifest: str | None = None,
    level: str = "headers",
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    strict: bool = False,
    allow_unverified: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Reconcile what a manifest declares with what a checkpoint stores.

    source: a folder, a weight file or a shard index. manifest: a library id or a file; by default chosen from
    config.json, else from the keys. level: `headers` or `values`. select, ignore: rule codes, names or prefixes.
    strict: warnings reject. allow_unverified: the verdict stands, for the caller to treat as accepted.
    Nothing is written and nothing of the source is executed. Raises RequestError where there is nothing to audit.
    """
    del allow_unverified
    if level not in LEVELS:
        raise RequestError(f"level {level!r}: expected one of {', '.join(LEVELS)}")
    rules = registry.chosen(select, ignore)
    checkpoint = open_checkpoint(os.fspath(source))
    try:
        choice = choose(manifest, checkpoint)
        audit = _audit(checkpoint, choice, level, progress)
    finally:
        close_files()
    findings = registry.run(rules, audit)
    return _report(audit, choice, findings, strict)


def _audit(checkpoint: Checkpoint, choice: Any, level: str, progress: Progress | None) -> Audit:
    config = effective_config(checkpoint.config)
    non_finite = tuple(_non_finite(checkpoint, progress)) if level == "values" else ()
    if not isinstance(choice, Choice):
        return Audit(checkpoint, config, level, None, choice.id, choice.score, non_finite)
    reconciled = _reconcile(checkpoint, choice, config, level)
    return Audit(checkpoint, config, level, reconciled, None, 0.0, non_finite)


def _reconcile(checkpoint: Checkpoint, choice: Choice, config: dict[str, Any] | None, level: str) -> Reconciled:
    bound, binding = _bound(checkpoint, choice.loaded.manifest, config)
    live = bind(choice.loaded.manifest, config, pins=False, class_name=bound.class_name) if bound.pinned else bound
    account = shapes.explain(bound, binding, config)
    vectors = norms.read_norms(checkpoint, binding)
    tied = ties.examine(checkpoint, bound, binding, whole=level == "values")
    solved = dims.solved(bound, binding)
    rows = contract.reconcile(
        (testimony.declared(bound, binding.quantised), testimony.stored(live, bound, binding, solved, vectors, tied))
    )
    return Reconciled(bound, binding, account, vectors, tied, rows)


def _bound(checkpoint: Checkpoint, manifest: Manifest, config: dict[str, Any] | None) -> tuple[BoundManifest, Binding]:
    """The manifest under this config, and the keys matched; where no class is named, the class that fits them best."""
    named = config_classes(config)
    best: tuple[int, BoundManifest, Binding] | None = None
    for name in named[:1] or classes(manifest) or [None]:
        bound = bind(manifest, config, class_name=name)
        if config is None:
            seen = dims.observed(bound, checkpoint.tensors)
            bound = bind(manifest, None, observed=seen, class_name=name)
        binding = match.match(bound, checkpoint, config)
        odd = sum(len(t.missing) for t in binding.templates) + len(binding.unexpected) + len(binding.foreign)
        # A root that has to be renamed counts as one oddity per key, or the base class would never be found.
        odd += sum(r.count for r in binding.renames if r.kind == "prefix")
        if best is None or odd < best[0]:
            best = odd, bound, binding
    assert best is not None  # there is always one candidate
    return best[1], best[2]


def _non_finite(checkpoint: Checkpoint, progress: Progress | None) -> Iterable[NonFiniteTensor]:
    """Every tensor with a NaN or an infinity; streams all bytes."""
    from blockaudit.checkpoint.nonfinite import count_nonfinite

    total, done = sum(t.nbytes for t in checkpoint.tensors.values()), 0
    for key, header in checkpoint.tensors.items():
        found = count_nonfinite(checkpoint, key)
        if found.count:
            yield NonFiniteTensor(key, found.count, header.elements, found.first)
        done += header.nbytes
        if progress is not None:
            progress("values", done, total)


def _report(audit: Audit, choice: Any, findings: tuple[Finding, ...], strict: bool) -> Report:
    rows = audit.reconciled.rows if audit.reconciled else ()
    return Report(
        kind="inspection",
        verdict=_verdict(audit, findings, strict),
        level=audit.level,
        subject=_subject(audit.checkpoint),
        manifest=_chosen(choice),
        contract=rows,
        findings=findings,
        not_checked=tuple(r.field for r in rows if r.agrees is None),
        version=__version__,
    )


def _verdict(audit: Audit, findings: tuple[Finding, ...], strict: bool) -> Verdict:
    """Rejected by any error; unverified where something that this level needs could not be known; else accepted."""
    if any(f.severity == "error" or (strict and f.severity == "warning") for f in findings):
        return "rejected"
    if audit.reconciled is None or audit.config is None or registry.leaves_unverified(findings):
        return "unverified"
    if any(r.required and not r.known for r in audit.reconciled.rows):
        return "unverified"
    return "accepted"


def _subject(checkpoint: Checkpoint) -> Subject:
    dtypes: dict[str, int] = {}
    parameters = total = 0
    for header in checkpoint.tensors.values():
        dtypes[header.dtype] = dtypes.get(header.dtype, 0) + 1
        parameters += header.elements
        total += header.nbytes
    return Subject(
        source=checkpoint.source,
        format=checkpoint.format,
        files=tuple(f.name for f in checkpoint.files),
        tensors=len(checkpoint.tensors),
        parameters=parameters,
        bytes=total,
        dtypes=dict(sorted(dtypes.items())),
    )


def _chosen(choice: Any) -> ManifestChoice | None:
    if not isinstance(choice, Choice):
        return None
    loaded = choice.loaded
    return ManifestChoice(
        loaded.manifest.architecture_id, loaded.id, choice.chosen_by, choice.confidence, loaded.sha256
    )
