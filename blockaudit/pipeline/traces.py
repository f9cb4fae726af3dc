"""Trace files: shown, held against each other, and recorded."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from blockaudit.checkpoint.source import open_checkpoint
from blockaudit.checkpoint.values import close_files
from blockaudit.errors import RequestError
from blockaudit.pipeline.audit import findings_of
from blockaudit.pipeline.execution import needs_torch
from blockaudit.pipeline.runnable import layer_range, needs_plain, prepared
from blockaudit.rules import registry

if TYPE_CHECKING:
    from blockaudit.records.trace_file import SiteNumbers, TraceComparison, TraceMetadata


def trace_sites(path: str) -> tuple[TraceMetadata, list[SiteNumbers]]:
    """What a trace file holds, site by site, without torch. Raises RequestError for a file that is no trace."""
    from blockaudit.trace.files.read import listed

    return listed(path)


def compare_traces(candidate: str, reference: str, tolerance: str | None = None) -> TraceComparison:
    """Two trace files held against each other under a tolerance policy (a file; None: the default).

    Raises RequestError where one cannot be read, or they are of different tokens or shapes.
    """
    if find_spec("torch") is None:
        raise RequestError("trace compare needs torch: pip install 'blockaudit[torch]'")
    from blockaudit.trace.files.compare import compare
    from blockaudit.trace.tolerance import load

    return compare(candidate, reference, load(tolerance))


def record_trace(
    source: str | os.PathLike[str],
    *,
    out: Path,
    candidate: str = "hf",
    manifest: str | None = None,
    device: str = "auto",
    dtype: str = "checkpoint",
    batch: int = 2,
    seq_len: int | None = None,
    seed: int = 0,
    tokens: str | None = None,
    layers: str | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Run `candidate` end to end and write its sites, a layer at a time.

    candidate: `hf` (the class that config.json names) or `FILE.py:NAME` (its code is run). Raises RequestError.
    """
    needs_torch()
    from blockaudit.trace.files.record import record
    from blockaudit.trace.request import Request
    from blockaudit.trace.tokens import read_tokens

    if candidate.endswith(".safetensors"):
        raise RequestError(f"--candidate {candidate}: it is a trace already")
    checkpoint = open_checkpoint(os.fspath(source), whole=True)
    try:
        ready = prepared(checkpoint, manifest)
        found = findings_of(registry.chosen((), ()), ready.audit, ready.loaded)
        wrong = next((f for f in found if f.hinders), None)
        if wrong is not None:
            raise RequestError(
                f"{checkpoint.source}: it cannot be run: {wrong.code} {wrong.name}: {wrong.message}: "
                "`blockaudit inspect` says more"
            )
        needs_plain(checkpoint, ready.reconciled)
        asked = Request(
            candidate=candidate, layers=layer_range(layers), device=device, dtype=dtype, batch=batch, seq_len=seq_len,
            seed=seed, tokens=read_tokens(tokens).tensors() if tokens is not None else None,
            code=checkpoint.folder if trust_remote_code else None, manifest_sha256=ready.loaded.sha256,
        )  # fmt: skip
        record(checkpoint, ready.config, ready.reconciled.declared, asked, out)
    finally:
        close_files()
