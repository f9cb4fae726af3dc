"""A norm that is declared with a bias has none in the checkpoint.

What it means:
    The norm's weight is there and its bias is not.

Why it matters:
    A missing bias is not a zero bias: the family may be another one (RMSNorm), or a trained shift is lost.

Example:
    encoder.layer.0.output.LayerNorm.bias is absent.

What to do:
    Restore the bias, or declare a norm without one.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.attribute import missing
from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, across

RULE = Rule(
    "N104",
    "norm-bias-missing",
    "restore the bias, or declare a norm without one",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Expected keys of this place that are not there."""
    for place, t in missing(audit):
        if place == "norm_bias":
            yield RULE.finding(
                t.expected.owner,
                f"{len(t.missing)} of {len(t.missing) + t.found} missing: {across(t, t.missing)}",
                tensors=t.missing,
                expected="a norm bias",
                observed="no such tensor",
                evidence="tensor headers",
            )
