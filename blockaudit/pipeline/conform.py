"""`conform`: the numbers of a candidate, held against the manifest executed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from blockaudit.checkpoint.source import open_checkpoint
from blockaudit.checkpoint.values import close_files
from blockaudit.errors import RequestError, UnwrittenError
from blockaudit.manifest.library import Choice, LoadedManifest, choose
from blockaudit.pipeline.audit import Progress, audited, findings_of, is_model, needs_class
from blockaudit.pipeline.execution import needs_torch
from blockaudit.pipeline.reporting import Judging, reported
from blockaudit.pipeline.suppress import suppression
from blockaudit.reconcile.assemble import reconcile
from blockaudit.reconcile.audit import Audit
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.report import Finding, Report, Verdict
from blockaudit.records.suppression import Waiver
from blockaudit.rules import registry


def conform(
    source: str | os.PathLike[str],
    *,
    manifest: str | None = None,
    candidate: str = "hf",
    reference: str = "decoder",
    mode: str = "all",
    layers: str | None = None,
    device: str = "auto",
    dtype: str = "checkpoint",
    batch: int = 2,
    seq_len: int | None = None,
    seed: int = 0,
    tokens: str | None = None,
    tolerance: str | None = None,
    trace_out: Path | None = None,
    repro: Path | None = None,
    algebra: bool = False,
    trust_remote_code: bool = False,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    strict: bool = False,
    waivers: Sequence[Waiver] = (),
    baseline: str | os.PathLike[str] | None = None,
    write_baseline: str | os.PathLike[str] | None = None,
    pictures: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Run a candidate beside the manifest, executed, and compare every site (contract section 6).

    candidate: `hf` (the class that config.json names), `FILE.py:NAME` (its code is run) or a trace file. Needs torch
    and transformers. Raises RequestError where there is nothing to run.
    """
    needs_torch()
    from blockaudit.trace import conform as running
    from blockaudit.trace import tolerance as tolerances
    from blockaudit.trace.repro import folder
    from blockaudit.trace.tokens import read_tokens

    by = suppression(waivers, baseline, None if follows() else write_baseline)
    how = Judging(registry.chosen(select, ignore), strict, by, pictures)
    if repro is not None:
        _check_repro(repro, mode)
        folder.check(repro)
    checkpoint = open_checkpoint(os.fspath(source), whole=True)
    try:
        choice, audit, loaded, config = prepared(checkpoint, manifest)
        found = findings_of(how.rules, audit, loaded)
        if audit.reconciled is None or loaded is None or any(hinders(f) for f in found):
            return _reported(audit, choice, loaded, found, how)
        needs_plain(audit)
        asked = running.Request(
            candidate=candidate,
            reference=reference,
            mode=mode,
            layers=layer_range(layers),
            device=device,
            dtype=dtype,
            batch=batch,
            seq_len=seq_len,
            seed=seed,
            tokens=read_tokens(tokens).tensors() if tokens is not None else None,
            policy=tolerances.load(tolerance),
            code=checkpoint.folder if trust_remote_code else None,
            manifest_sha256=loaded.sha256,
            trace_out=trace_out,
            algebra=algebra,
            repro=repro,
        )
        outcome = running.run(checkpoint, config, audit.reconciled.declared, asked, progress)
        executed = outcome.executed(audit.reconciled.declared)
        reconciled = reconcile(
            checkpoint, loaded.manifest, config, whole=False,
            execute=None if executed is None else lambda bound: executed, measured=outcome.measured(),
        )  # fmt: skip
        audit = replace(audit, reconciled=reconciled, conformance=outcome.conformance)
        report = _reported(audit, choice, loaded, findings_of(how.rules, audit, loaded), how)
        if outcome.unwritten:
            raise UnwrittenError(outcome.unwritten, report)
        return report
    finally:
        close_files()


def follows() -> bool:
    """Whether this process is one of several of a run (torchrun's) and not the first, whose report is everybody's."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and os.environ.get("RANK", "0") != "0"


def _check_repro(folder: Path, mode: str) -> None:
    """Raises RequestError where no operator is compared by itself."""
    if mode not in ("all", "local"):
        raise RequestError(f"--repro {str(folder)!r} needs local comparisons: --mode local or all, not {mode}")


def prepared(
    checkpoint: Checkpoint, manifest: str | None
) -> tuple[Choice, Audit, LoadedManifest | None, dict[str, Any]]:
    """The manifest, what headers say under it, and config.json: all that a run needs. Raises RequestError."""
    needs_class(checkpoint, "conform runs")
    choice = choose(manifest, checkpoint) if is_model(checkpoint) else None
    if not isinstance(choice, Choice):
        raise RequestError(
            f"{checkpoint.source}: no manifest speaks of it: name one with --manifest ID|FILE, or write one with "
            "`blockaudit manifest draft --level graph`"
        )
    audit, loaded = audited(checkpoint, choice, "headers", ())
    if audit.config is None:
        raise RequestError(
            f"{checkpoint.source}: no config.json: there is no class to build and no epsilon to hold it to"
        )
    return choice, audit, loaded, _named(audit.config, audit, loaded)


def _named(config: dict[str, Any], audit: Audit, loaded: LoadedManifest | None) -> dict[str, Any]:
    """config.json with the class that is run named: where it names none, it is the one that the manifest is of."""
    if loaded is None or audit.reconciled is None or config.get("model_type"):
        return config
    match = loaded.manifest.match
    named = audit.reconciled.declared.class_name or match.base_class
    types = {"model_type": match.model_types[0]} if match.model_types else {}
    return {**config, **types, **({"architectures": [named]} if named else {})}


def needs_plain(audit: Audit) -> None:
    """Raises RequestError where weights are quantised: reference and candidate compute with plain numbers."""
    found = audit.reconciled.binding.quantised if audit.reconciled is not None else None
    if found is not None and found.weights:
        raise RequestError(
            f"{audit.checkpoint.source}: {len(found.weights)} of its weights are quantised ({found.scheme}): "
            "dequantise the checkpoint first, numbers are compared plain"
        )


def hinders(finding: Finding) -> bool:
    """Whether there is no running it: files that cannot be read, keys that are missing, shapes that do not fit."""
    return finding.severity == "error" and finding.code[0] in "FKS"


def layer_range(text: str | None) -> range | None:
    """`A:B` as layer numbers, B left out. Raises RequestError."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not colon or not (first or "0").isdecimal() or not (last or "0").isdecimal():
        raise RequestError(f"--layers {text!r}: expected A:B, the first layer and the one after the last (4:8)")
    return range(int(first or 0), int(last) if last else 1_000_000)


def _reported(
    audit: Audit, choice: Choice, loaded: LoadedManifest | None, found: tuple[Finding, ...], how: Judging
) -> Report:
    audit = replace(audit, level="trace")
    return reported("conformance", audit, (choice, loaded), found, how, partial(_compared, audit))


def _compared(audit: Audit, findings: tuple[Finding, ...]) -> Verdict:
    """Unverified where nothing was compared, or something that had to be known is not; else accepted.

    A law of the residual algebra that the run's own numbers break is no fault with a name: where no site that it is
    made of fails, nobody knows what it is.
    """
    run = audit.conformance
    if run is None or run.failure or not all(law.holds for law in run.laws) or registry.leaves_unverified(findings):
        return "unverified"
    return "accepted" if any(site.passed is not None for site in run.sites) else "unverified"
