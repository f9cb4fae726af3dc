"""The stack-final norm has no weight in the checkpoint.

What it means:
    The manifest declares a norm after the last layer and its key is absent.

Why it matters:
    The output head then reads a state that was never brought to its scale: shapes stay, every logit changes.

Example:
    model.norm.weight is absent.

What to do:
    Restore the final norm's weight.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, gone_norms, row_finding
from blockaudit.rules.by_place import missing_at

RULE = Rule(
    "N106",
    "final-norm-missing",
    "restore the final norm's weight",
    lab=(18,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Expected keys of this place that are not there."""
    yield from missing_at(RULE, audit, "final_norm", "a final norm weight")
    for row in gone_norms(audit, "final_norm"):
        yield row_finding(RULE, [row])
