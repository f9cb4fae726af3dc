"""The candidate gives NaN or infinity where the reference is finite.

What it means:
    Numbers of a site are NaN or infinite in the candidate, and the executed manifest gives finite ones from the same
    weights and tokens.

Why it matters:
    One NaN spreads through the rows that attention mixes, and every comparison after it says nothing.

Example:
    12 numbers of layers.2.mlp.branch in float16: a product above 65504.

What to do:
    Look at the first site named: a cast to a narrower dtype, a division by a variance without epsilon, a mask that
    hides a whole row.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "V102",
    "trace-non-finite",
    "look at the first site named: a cast to a narrower dtype, a missing epsilon, a mask that hides a whole row",
)


def check(audit: Audit) -> Iterator[Finding]:
    """One finding: the first such site, its count, and how many sites follow."""
    run = audit.conformance
    if run is None or not run.non_finite:
        return
    (first, number), *others = run.non_finite
    more = f"; so are numbers of {len(others)} more sites" if len(others) > 1 else "; so are numbers of one more site"
    yield RULE.finding(
        first,
        f"{number} {'number is' if number == 1 else 'numbers are'} NaN or infinite where the reference is finite"
        f"{more if others else ''}",
        expected=0,
        observed=number,
        evidence=f"{run.dtype} on {run.device}, batch {run.batch} x {run.seq_len}, seed {run.seed}",
        also=[site for site, _ in others],
    )
