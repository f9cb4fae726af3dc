"""A tensor holds NaN or infinite values.

What it means:
    Elements that are not finite were read from the weights.

Why it matters:
    One of them spreads to every row it touches.

Example:
    model.norm.weight[0] is NaN.

What to do:
    Find the step that wrote it (an fp16 cast, a diverged run) and restore the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "F201",
    "non-finite-values",
    "find the step that wrote it (an fp16 cast, a diverged run) and restore the tensor",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Norm vectors at every level; every tensor at the values level."""
    seen = {f.key for f in audit.non_finite}
    for f in audit.non_finite:
        first = f", the first at {f.first}" if f.first is not None and f.first >= 0 else ""
        yield RULE.finding(
            f.key,
            f"{f.count} of {f.elements} elements are not finite{first}",
            tensors=(f.key,),
            expected=0,
            observed=f.count,
            evidence="all bytes of the tensor",
        )
    norms = audit.reconciled.norms.stats if audit.reconciled else {}
    for key, stats in norms.items():
        if stats.non_finite and key not in seen:
            yield RULE.finding(
                key,
                f"{stats.non_finite} of {stats.count} elements are not finite",
                tensors=(key,),
                expected=0,
                observed=stats.non_finite,
                evidence="the norm vector",
            )
