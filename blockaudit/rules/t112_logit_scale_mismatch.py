"""Two witnesses give different factors or caps on scores.

What it means:
    The logits (or attention scores) are multiplied or capped differently.

Why it matters:
    Greedy tokens stay the same and every probability is wrong.

Example:
    A logit of 124 under a cap of 30 is 29.98; without the cap it is 124.

What to do:
    Restore the logit factor or cap.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_rows

RULE = Rule(
    "T112",
    "logit-scale-mismatch",
    "restore the logit factor or cap",
)

FIELDS = ("logits.scale", "logits.softcap", ".softcap")


def check(audit: Audit) -> Iterator[Finding]:
    """Contract rows of these fields on which the witnesses disagree."""
    yield from from_rows(RULE, audit, lambda field: field.endswith(FIELDS))
