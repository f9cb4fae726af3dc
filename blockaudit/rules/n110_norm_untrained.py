"""Every norm weight of the checkpoint still has its initial value.

What it means:
    All gains are constant: ones (or zeros, for a gain stored as its offset from one).

Why it matters:
    An untrained model looks so, and so does one whose norms were lost and filled in by a loader.

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
    """All gains of the stack constant."""
    weights = audit.reconciled.norms.weights() if audit.reconciled else {}
    if len(weights) > 1 and all(s.constant and s.mean in (0.0, 1.0) for s in weights.values()):
        first = next(iter(weights.values()))
        yield RULE.finding(
            "norms",
            f"all {len(weights)} norm weights are constant at {first.mean:g}",
            tensors=tuple(weights),
            expected="gains that training moved",
            observed=first.mean,
            evidence="norm vectors",
        )
