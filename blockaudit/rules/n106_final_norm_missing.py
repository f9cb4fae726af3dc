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

from blockaudit.reconcile.attribute import missing
from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, across, gone_norms, row_finding

RULE = Rule(
    "N106",
    "final-norm-missing",
    "restore the final norm's weight",
    lab=(18,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Expected keys of this place that are not there."""
    for place, t in missing(audit):
        if place == "final_norm":
            yield RULE.finding(
                t.expected.owner,
                f"{len(t.missing)} of {len(t.missing) + t.found} missing: {across(t, t.missing)}",
                tensors=t.missing,
                expected="a final norm weight",
                observed="no such tensor",
                evidence="tensor headers",
            )
    for row in gone_norms(audit, "final_norm"):
        yield row_finding(RULE, [row])
