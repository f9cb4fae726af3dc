"""Running statistics of a norm were never updated.

What it means:
    The counter of batches that went into running_mean and running_var is zero.

Why it matters:
    Inference uses those statistics: they are the initial ones, not the data's.

Example:
    num_batches_tracked is 0 for every BatchNorm.

What to do:
    Refresh the running statistics on calibration data before release.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "N207",
    "calibration-stale",
    "refresh the running statistics on calibration data before release",
    lab=(50,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Counters that stand at zero."""
    norms = audit.reconciled.norms if audit.reconciled else None
    for key, stats in norms.stats.items() if norms else ():
        if norms is not None and norms.role[key] == "num_batches_tracked" and stats.maximum == 0:
            yield RULE.finding(
                norms.owner[key],
                f"{key} is 0: its running statistics were never updated",
                tensors=(key,),
                expected="more than 0",
                observed=0,
                evidence=key,
            )
