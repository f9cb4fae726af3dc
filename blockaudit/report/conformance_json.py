"""The `conformance` section of a JSON report (contract section 6): what the numbers showed, to six digits.

JSON has no number for NaN and the infinities: they are `null`, and a second run of the same numbers is the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from blockaudit.records.conformance import (
    Blind,
    Conformance,
    Diagnosis,
    Difference,
    Identified,
    Law,
    Quantiles,
    SiteResult,
    Telemetry,
)
from blockaudit.report.plain import plain

DIGITS = 6


def to_dict(run: Conformance) -> dict[str, Any]:
    """The section as the schema describes it."""
    return {
        "device": run.device,
        "reference_depth": run.depth,
        "depth_reason": run.depth_reason,
        "dtype": run.dtype,
        "mode": run.mode,
        "layers": run.layers,
        "batch": run.batch,
        "seq_len": run.seq_len,
        "seed": run.seed,
        "candidate": run.candidate,
        "recorded": run.recorded,
        "policy": _value(run.policy),
        "first_divergence": _first(run.first) if run.first is not None else None,
        "explained": run.explained,
        "sites": [_site(site) for site in run.sites],
        "identified": [_identified(found) for found in run.identified],
        "diagnosis": [_diagnosis(edit) for edit in run.diagnosis],
        "telemetry": [_telemetry(update) for update in run.telemetry],
        "growth": [{"stack": stack, **_quantiles(quantiles)} for stack, quantiles in run.growth],
        "missing": list(run.missing),
        "unexpected": list(run.unexpected),
        "touched": list(run.touched),
        "non_finite": [{"site": site, "count": number} for site, number in run.non_finite],
        "blind": [_blind(field) for field in run.blind],
        "laws": [_law(law) for law in run.laws],
        "silent": list(run.silent),
        "failure": run.failure,
        "unfinished": run.unfinished,
    }


def figure(number: float | None) -> float | None:
    """A measured number to six significant digits; None for one that JSON has no word for."""
    return None if number is None or not math.isfinite(number) else float(f"{number:.{DIGITS}g}")


def _value(value: Any) -> Any:
    """A field's value as JSON can carry it, its numbers as `figure` gives them."""
    if isinstance(value, float):
        return figure(value)
    if isinstance(value, Mapping):
        return {str(k): _value(v) for k, v in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_value(v) for v in cast("list[Any]", value)]
    return plain(value)


def _first(site: SiteResult) -> dict[str, Any]:
    return {
        "site": site.site,
        "mode": site.mode,
        "metric": site.metric,
        "observed": figure(site.observed),
        "tolerance": figure(site.tolerance),
        "floor": figure(site.floor),
        "dtype": site.dtype,
        "probe": site.probe,
        "token": site.difference.token,
        "channel": site.difference.channel,
    }


def _site(site: SiteResult) -> dict[str, Any]:
    return {
        "site": site.site,
        "mode": site.mode,
        "dtype": site.dtype,
        **{name: _value(number) for name, number in msgspec.structs.asdict(site.difference).items()},
        "metric": site.metric,
        "observed": figure(site.observed),
        "tolerance": figure(site.tolerance),
        "floor": figure(site.floor),
        "probe": site.probe,
        "passed": site.passed,
    }


def _identified(found: Identified) -> dict[str, Any]:
    return {
        "field": found.field,
        "layers": found.layers,
        "value": _value(found.value),
        "interval": None if found.interval is None else [figure(bound) for bound in found.interval],
        "declared": _value(found.declared),
        "evidence": found.evidence,
    }


def _diagnosis(edit: Diagnosis) -> dict[str, Any]:
    return {
        "field": edit.field,
        "layers": edit.layers,
        "declared": _value(edit.declared),
        "value": _value(edit.value),
        "explains": figure(edit.explains),
        "rule": edit.rule,
        "group": edit.group,
    }


def _telemetry(update: Telemetry) -> dict[str, Any]:
    return {
        "site": update.site,
        "rho": _quantiles(update.rho),
        "cosine": _quantiles(update.cosine),
        "growth": _quantiles(update.growth),
    }


def _quantiles(quantiles: Quantiles) -> dict[str, Any]:
    return {name: figure(number) for name, number in msgspec.structs.asdict(quantiles).items()}


def _blind(field: Blind) -> dict[str, Any]:
    return {name: _value(value) for name, value in msgspec.structs.asdict(field).items()}


def _law(law: Law) -> dict[str, Any]:
    return {name: _value(value) for name, value in msgspec.structs.asdict(law).items()}


def from_dict(document: dict[str, Any]) -> Conformance:
    """The run that a section carries: `to_dict(from_dict(d)) == d`. A number that JSON had no word for is NaN."""
    sites = tuple(_site_from(site) for site in document["sites"])
    first = document["first_divergence"]
    told: dict[str, Any] = {name: document[name] for name in _ALIKE}
    told |= {name: tuple(document[name]) for name in ("missing", "unexpected", "touched", "silent")}
    told |= {
        "depth": document["reference_depth"],
        "sites": sites,
        "first": None if first is None else _first_from(first, sites),
        "identified": tuple(_identified_from(found) for found in document["identified"]),
        "diagnosis": tuple(Diagnosis(**_numbers(edit, "explains")) for edit in document["diagnosis"]),
        "telemetry": tuple(_telemetry_from(update) for update in document["telemetry"]),
        "growth": tuple(_growth_from(stack) for stack in document["growth"]),
        "non_finite": tuple((entry["site"], entry["count"]) for entry in document["non_finite"]),
        "blind": tuple(Blind(**_numbers(field, "effect", "tolerance")) for field in document["blind"]),
        "laws": tuple(Law(**_numbers(law, "error", "bound")) for law in document["laws"]),
    }
    return Conformance(**told)


# Keys that say the same in the section and in the record.
_ALIKE = (
    "device", "depth_reason", "dtype", "mode", "layers", "batch", "seq_len", "seed", "candidate", "recorded", "policy",
    "explained", "failure", "unfinished",
)  # fmt: skip


def _numbers(document: dict[str, Any], *names: str) -> dict[str, Any]:
    """The document with NaN for null under these names."""
    return document | {name: math.nan for name in names if document[name] is None}


def _site_from(site: dict[str, Any]) -> SiteResult:
    figures = ("max_abs", "rms_rel", "cosine", "ulp", "row_rel", "rms", "scale", "observed", "tolerance")
    numbers = _numbers(site, *figures)
    seen = Difference(**{name: numbers.pop(name) for name in Difference.__struct_fields__})
    return SiteResult(difference=seen, **numbers)


def _first_from(first: dict[str, Any], sites: tuple[SiteResult, ...]) -> SiteResult:
    """The site that it is, among those compared; of a document that lacks it, what the entry itself says."""
    named = (first["site"], first["mode"], first["dtype"], first["probe"])
    found = next((s for s in sites if (s.site, s.mode, s.dtype, s.probe) == named and _first(s) == first), None)
    if found is not None:
        return found
    rest = _numbers(first, "observed", "tolerance")
    seen = Difference(math.nan, math.nan, math.nan, token=rest.pop("token"), channel=rest.pop("channel"))
    return SiteResult(difference=seen, passed=False, **rest)


def _identified_from(found: dict[str, Any]) -> Identified:
    told = dict(found)
    if told["interval"] is not None:
        low, high = told["interval"]
        told["interval"] = (-math.inf if low is None else low, math.inf if high is None else high)
    return Identified(**told)


def _telemetry_from(update: dict[str, Any]) -> Telemetry:
    quantiles = {name: Quantiles(**_numbers(update[name], *update[name])) for name in ("rho", "cosine", "growth")}
    return Telemetry(site=update["site"], **quantiles)


def _growth_from(entry: dict[str, Any]) -> tuple[str, Quantiles]:
    numbers = {name: value for name, value in entry.items() if name != "stack"}
    return entry["stack"], Quantiles(**_numbers(numbers, *numbers))
