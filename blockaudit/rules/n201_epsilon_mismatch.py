"""Two witnesses give different epsilons.

What it means:
    The manifest's value is not the one that config.json gives, the code runs or the numbers show.

Why it matters:
    Every shape stays right; rows whose mean square is near epsilon are scaled differently, and quality falls
    without an error.

Example:
    A row of +-0.02: 0.99875 at 1e-6 and 0.98773 at 1e-5.

What to do:
    Restore the epsilon that the weights were trained with, or pin the new one after retraining.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_rows

RULE = Rule(
    "N201",
    "epsilon-mismatch",
    "restore the epsilon that the weights were trained with, or pin the new one after retraining",
    lab=(12, 39),
)

FIELDS = (".epsilon",)


def check(audit: Audit) -> Iterator[Finding]:
    """Contract rows of these fields on which the witnesses disagree."""
    yield from from_rows(RULE, audit, lambda field: field.endswith(FIELDS))
