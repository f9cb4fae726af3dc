"""A site that the manifest declares is missing from the candidate's trace.

What it means:
    The candidate never computes that value, its trace does not hold it, or the run ended before it.

Why it matters:
    What was not seen was not compared: a fault there would pass.

Example:
    layers.{l}.mlp.norm_out is declared for layers 0-31, and the candidate has no such value.

What to do:
    Give the value under the site's name, or declare the architecture that the candidate runs. Of a recorded trace this
    is a warning that leaves the audit unverified: record the sites that are missing.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.conformance import Conformance
from blockaudit.records.layers import by_template, ranges, spoken
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "V103",
    "site-missing",
    "give the value under the site's name, or declare the architecture that the candidate runs",
    unverified=True,
)


def check(audit: Audit) -> Iterator[Finding]:
    """One finding for each kind of site; one for all of them where the run ended early."""
    run = audit.conformance
    if run is None:
        return
    if run.failure:
        yield _ended(run)
        return
    if run.unfinished:
        yield RULE.finding(
            "run",
            f"not every layer was compared: {run.unfinished}",
            expected="a value at every site of the manifest",
            evidence=f"the run of {run.candidate}",
            severity="warning",
            help="mend what ended it, and run it again",
        )
        return
    for template, layers in by_template(run.missing).items():
        where = f" in {spoken(ranges(layers))}" if layers else ""
        yield RULE.finding(
            template,
            f"the candidate gives no such value{where}",
            expected="a value at every site of the manifest",
            observed=f"none{where}",
            evidence=f"the trace of {run.candidate}",
            severity="warning" if run.recorded else None,
            help="record this site too" if run.recorded else None,
        )


def _ended(run: Conformance) -> Finding:
    sites = f", and {len(run.missing)} sites were not reached" if run.missing else ""
    return RULE.finding(
        "run",
        f"the run ended early: {run.failure}{sites}",
        expected="a value at every site of the manifest",
        observed=f"{len(run.missing)} sites without one" if run.missing else None,
        evidence=f"the trace of {run.candidate}",
        help="mend what ended the run, and run it again",
    )
