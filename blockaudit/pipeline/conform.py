"""`conform`: the numbers of a candidate, held against the manifest executed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from blockaudit.checkpoint.source import open_checkpoint
from blockaudit.checkpoint.values import close_files
from blockaudit.errors import RequestError, UnwrittenError
from blockaudit.pipeline.audit import Progress, findings_of
from blockaudit.pipeline.execution import needs_torch
from blockaudit.pipeline.reporting import Judging, reported
from blockaudit.pipeline.runnable import Prepared, layer_range, needs_plain, prepared
from blockaudit.pipeline.suppress import suppression
from blockaudit.reconcile.assemble import reconcile
from blockaudit.reconcile.audit import Audit
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
        ready = prepared(checkpoint, manifest)
        found = findings_of(how.rules, ready.audit, ready.loaded)
        if any(f.hinders for f in found):
            return _reported(ready.audit, ready, found, how)
        needs_plain(checkpoint, ready.reconciled)
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
            manifest_sha256=ready.loaded.sha256,
            trace_out=trace_out,
            algebra=algebra,
            repro=repro,
        )
        declared = ready.reconciled.declared
        outcome = running.run(checkpoint, ready.config, declared, asked, progress)
        executed = outcome.executed(declared)
        reconciled = reconcile(
            checkpoint, ready.loaded.manifest, ready.config, whole=False,
            execute=None if executed is None else lambda bound: executed, measured=outcome.measured(),
        )  # fmt: skip
        audit = replace(ready.audit, reconciled=reconciled, conformance=outcome.conformance)
        report = _reported(audit, ready, findings_of(how.rules, audit, ready.loaded), how)
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


def _reported(audit: Audit, ready: Prepared, found: tuple[Finding, ...], how: Judging) -> Report:
    audit = replace(audit, level="trace")
    return reported("conformance", audit, (ready.choice, ready.loaded), found, how, partial(_compared, audit))


def _compared(audit: Audit, findings: tuple[Finding, ...]) -> Verdict:
    """Unverified where nothing was compared, or something that had to be known is not; else accepted.

    A law of the residual algebra that the run's own numbers break is no fault with a name: where no site that it is
    made of fails, nobody knows what it is.
    """
    run = audit.conformance
    if run is None or run.failure or not all(law.holds for law in run.laws) or registry.leaves_unverified(findings):
        return "unverified"
    return "accepted" if any(site.passed is not None for site in run.sites) else "unverified"
