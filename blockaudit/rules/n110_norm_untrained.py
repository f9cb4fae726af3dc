"""Norm weights of the checkpoint still have their initial value, or are zero.

What it means:
    All gains are constant: ones (or zeros, for a gain stored as its offset from one); or a few are, among others
    that training moved.

Why it matters:
    An untrained model looks so, and so does one whose norms were lost and filled in by a loader. A gain of zero
    lets nothing through.

Example:
    All 65 norm weights are ones.

What to do:
    Check that the norms were saved after training, not created anew.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "N110",
    "norm-untrained",
    "check that the norms were saved after training, not created anew",
    severity="note",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Gains that are constant at zero or one: all of the stack, or a few."""
    weights = audit.reconciled.norms.weights() if audit.reconciled else {}
    if len(weights) < 2:
        return
    for value in (0.0, 1.0):
        # A gain of one element is constant whatever training did.
        still = [key for key, s in weights.items() if s.constant and s.count > 1 and s.mean == value]
        if still:
            some = "all" if len(still) == len(weights) else f"{len(still)} of"
            yield RULE.finding(
                "norms",
                f"{some} {len(weights)} norm weights are constant at {value:g}",
                tensors=still,
                expected="gains that training moved",
                observed=value,
                evidence="norm vectors",
            )
