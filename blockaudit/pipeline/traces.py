"""Trace files: shown, held against each other, and recorded."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from blockaudit.errors import RequestError

if TYPE_CHECKING:
    from blockaudit.records.trace_file import SiteNumbers, TraceComparison, TraceMetadata


def trace_sites(path: str) -> tuple[TraceMetadata, list[SiteNumbers]]:
    """What a trace file holds, site by site, without torch. Raises RequestError for a file that is no trace."""
    from blockaudit.trace.file import listed

    return listed(path)


def compare_traces(candidate: str, reference: str, tolerance: str | None = None) -> TraceComparison:
    """Two trace files held against each other under a tolerance policy (a file; None: the default).

    Raises RequestError where one cannot be read, or they are of different tokens or shapes.
    """
    if find_spec("torch") is None:
        raise RequestError("trace compare needs torch: pip install 'blockaudit[torch]'")
    from blockaudit.trace.compare_files import compare
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
    seq_len: int = 128,
    seed: int = 0,
    tokens: str | None = None,
    layers: str | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Run `candidate` end to end and write its sites, site by site, with `trace.file_writer.TraceWriter`."""
    raise NotImplementedError
