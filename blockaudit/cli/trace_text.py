"""What `blockaudit trace` prints: tables for people, plain data for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from blockaudit.records.conformance import SiteResult
from blockaudit.records.trace_file import SiteNumbers, TraceComparison, TraceMetadata
from blockaudit.report.escape import escape
from blockaudit.report.layout import Line, Span, paint, table


def listed(metadata: TraceMetadata, sites: Sequence[SiteNumbers]) -> str:
    """`trace show`, as text."""
    said = [[(name, "dim"), (escape(value), "")] for name, value in msgspec.to_builtins(metadata).items()]
    rows: list[list[Span]] = [[(name, "head") for name in ("site", "shape", "dtype", "rms", "non-finite")]]
    rows += [
        [(s.site, ""), (_shape(s.shape), ""), (s.dtype, ""), (f"{s.rms:.6g}", ""), (f"{s.non_finite:,}", "")]
        for s in sites
    ]
    lines: list[Line] = [*(table(said) if said else []), *([()] if said else []), *table(rows)]
    return paint(lines, False)


def listed_data(file: str, metadata: TraceMetadata, sites: Sequence[SiteNumbers]) -> dict[str, Any]:
    """`trace show`, as data."""
    rows = [{**msgspec.to_builtins(s), "rms": _figure(s.rms)} for s in sites]
    return {"file": file, "metadata": msgspec.to_builtins(metadata), "sites": rows}


def compared(found: TraceComparison, color: bool) -> str:
    """`trace compare`, as text."""
    rows: list[list[Span]] = [
        [(n, "head") for n in ("site", "rms_rel", "max_abs", "cosine", "judged", "observed", "tolerance", "")]
    ]
    rows += [_row(result) for result in found.sites]
    failed = sum(not result.passed for result in found.sites)
    lines: list[Line] = [*table(rows), ()]
    for label, names in (("candidate", found.only_candidate), ("reference", found.only_reference)):
        if names:
            lines.append(((f"only in the {label}, not judged: {', '.join(names)}", "dim"),))
    if found.first is None:
        lines.append(((f"{len(rows) - 1} sites within tolerance", "good"),))
    else:
        first, at = found.first, found.first.difference
        lines.append((
            (f"first divergence: {first.site}", "bad"),
            (f", {first.metric} {_number(first.observed)} over {_number(first.tolerance)}"
             f" (token {at.token}, channel {at.channel}); {failed} of {len(rows) - 1} sites fail", ""),
        ))  # fmt: skip
    return paint(lines, color)


def compared_data(found: TraceComparison) -> dict[str, Any]:
    """`trace compare`, as data."""
    return {
        "candidate": found.candidate,
        "reference": found.reference,
        "policy": found.policy,
        "passed": found.first is None,
        "first_divergence": None if found.first is None else _result(found.first),
        "sites": [_result(result) for result in found.sites],
        "only_candidate": list(found.only_candidate),
        "only_reference": list(found.only_reference),
        "remarks": list(found.remarks),
    }


def _row(result: SiteResult) -> list[Span]:
    found = result.difference
    verdict = ("ok", "good") if result.passed else ("FAILS", "bad")
    numbers = (found.rms_rel, found.max_abs, found.cosine)
    return [
        (result.site, "" if result.passed else "bad"),
        *((_number(value), "") for value in numbers),
        (result.metric, "dim"),
        (_number(result.observed), ""),
        (_number(result.tolerance), "dim"),
        verdict,
    ]


def _result(result: SiteResult) -> dict[str, Any]:
    numbers = msgspec.to_builtins(result.difference)
    whole = {"site": result.site, "mode": result.mode, "dtype": result.dtype, **numbers}
    whole |= {"metric": result.metric, "observed": result.observed, "tolerance": result.tolerance}
    return {k: _figure(v) if isinstance(v, float) else v for k, v in whole.items()} | {"passed": result.passed}


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _number(value: float) -> str:
    return f"{value:.4g}"


def _figure(value: float) -> float | None:
    """Six significant digits; None for what JSON has no word for."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
