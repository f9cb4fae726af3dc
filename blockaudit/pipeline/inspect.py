"""`inspect`: what is stored, declared and executed, reconciled."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial

from blockaudit.checkpoint import storage
from blockaudit.checkpoint.files import gc_paused
from blockaudit.checkpoint.quantization.view import logical_view
from blockaudit.checkpoint.source import models_of as parts_of
from blockaudit.checkpoint.values import close_files
from blockaudit.errors import RequestError
from blockaudit.manifest.library import Nearest, choose, speaks_of
from blockaudit.pipeline.adapter import on_base
from blockaudit.pipeline.alone import alone
from blockaudit.pipeline.audit import Progress, audited, findings_of, is_model, needs_class, opened
from blockaudit.pipeline.reporting import Judging, reported
from blockaudit.pipeline.suppress import suppression
from blockaudit.reconcile.audit import Audit, NonFiniteTensor
from blockaudit.reconcile.gguf import citing
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.report import Finding, Report, Verdict
from blockaudit.records.suppression import Waiver
from blockaudit.rules import registry

LEVELS = ("headers", "values", "graph")


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
    levels = levels_of(level)
    level = ",".join(name for name in LEVELS[1:] if name in levels) or LEVELS[0]
    how = Judging(registry.chosen(select, ignore), strict, suppression(waivers, baseline, write_baseline), pictures)
    if candidate is not None and "graph" not in levels:
        raise RequestError("--candidate is what --level graph runs: add --level graph")
    if source is None:
        if candidate is None or manifest is not None or "values" in levels:
            raise RequestError("without SOURCE there is --candidate FILE.py:NAME at --level graph alone")
        return alone(candidate, how)
    if trust_remote_code:
        _refuse_remote(source, base)
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
            found = citing.findings(findings_of(how.rules, audit, loaded), audit.checkpoint.container)
            return reported("inspection", audit, (choice, loaded), found, how, partial(_known, audit))
    finally:
        close_files()


def models_of(source: str | os.PathLike[str]) -> tuple[str, ...]:
    """The sub-folders of a local folder of several modules (diffusers, sentence-transformers) that `inspect` audits.

    Those text models that the library speaks of, else all; empty for a folder that is a model itself.
    """
    return parts_of(os.fspath(source), speaks_of)


def _refuse_remote(*sources: str | os.PathLike[str] | None) -> None:
    """Raises RequestError where code would be run that lies on a hub."""
    for source in sources:
        if source is not None and storage.is_remote(os.fspath(source)):
            raise RequestError(f"{os.fspath(source)}: --trust-remote-code runs no code from a hub: download it first")


def levels_of(asked: str) -> set[str]:
    """The levels asked for; `values` and `graph` each include `headers`. Raises RequestError for an unknown one."""
    levels = {part.strip() for part in asked.split(",")}
    if not levels <= set(LEVELS):
        raise RequestError(f"unknown level {asked!r}: expected {', '.join(LEVELS)}, or several with commas")
    return levels


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


def _known(audit: Audit, findings: tuple[Finding, ...]) -> Verdict:
    """Unverified where something that this level needs could not be known; else accepted."""
    if audit.reconciled is None or audit.config is None or registry.leaves_unverified(findings):
        return "unverified"
    if any(r.required and not r.known for r in audit.reconciled.rows):
        return "unverified"
    return "accepted"
