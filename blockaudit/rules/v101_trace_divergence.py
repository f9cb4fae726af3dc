"""The numbers of the candidate leave those of the reference.

What it means:
    At one site at least the candidate is farther from the executed manifest than the tolerance allows. The site named
    is the first in call order; in local mode every operator was given the candidate's own inputs, so that what fails
    there fails by itself.

Why it matters:
    The candidate computes another function than the manifest declares, though its keys and shapes are right.

Example:
    layers.1.self_attention.norm_in at a relative RMS of 1.2e-2 where 2.5e-6 is allowed, and no other site.

What to do:
    Start from the best diagnosis and the rule that stands beside this one; --repro writes the smallest case that shows
    it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from blockaudit.reconcile.audit import Audit
from blockaudit.records.conformance import Conformance, Diagnosis, SiteResult
from blockaudit.records.layers import spoken
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, shown

RULE = Rule(
    "V101",
    "trace-divergence",
    "start from the best diagnosis; --repro DIR writes the smallest case that shows it",
)


def check(audit: Audit) -> Iterator[Finding]:
    """One finding for the whole run: where it first differs, how far, and what explains it best."""
    run = audit.conformance
    failed = [site for site in run.sites if site.passed is False] if run else []
    if run is None or not (failed or run.first):
        return
    first = run.first or failed[0]
    compared = sum(site.passed is not None for site in run.sites)
    yield RULE.finding(
        first.site,
        f"the first site to differ, in {first.mode} mode: {_said(first)}; {len(failed)} of {compared} comparisons fail"
        f"{_explained(run)}",
        expected=_number(first.tolerance),
        observed=_number(first.observed),  # of the metric that the message names
        evidence=f"{first.dtype} on {run.device} against the {run.depth} reference, "
        f"batch {run.batch} x {run.seq_len}, seed {run.seed}",
        also=_others(first, failed),
    )


def _others(first: SiteResult, failed: Sequence[SiteResult]) -> tuple[str, ...]:
    """Other sites that fail by themselves; of a free run, where all that follows a fault fails, none is said to."""
    mine = (
        () if first.mode == "end-to-end" else (s.site for s in failed if s.mode == first.mode and s.site != first.site)
    )
    return tuple(dict.fromkeys(mine))


def _said(site: SiteResult) -> str:
    rows = f" on {site.probe} rows" if site.probe else ""
    if site.metric == "non_finite":
        return f"{site.difference.non_finite} numbers{rows} are finite on one side alone"
    return f"{site.metric} {_figure(site.observed)}{rows} where {_figure(site.tolerance)} is allowed"


def _explained(run: Conformance) -> str:
    if run.explained is False:
        return "; no edit of the manifest explains it"
    return f"; best explained by {_edit(run.diagnosis[0])}" if run.diagnosis else ""


def _edit(edit: Diagnosis) -> str:
    where = f" in {spoken(edit.layers)}" if edit.layers else ""
    return f"{edit.field} {shown(edit.value)} for {shown(edit.declared)}{where}"


def _number(number: float) -> float | None:
    """Six digits, as the report's own section has them."""
    return float(f"{number:.6g}") if math.isfinite(number) else None


def _figure(number: float) -> str:
    return f"{number:.3g}" if math.isfinite(number) else "no finite number"
