"""Two witnesses give different factors on a branch's update.

What it means:
    The number that multiplies the branch before the add differs.

Why it matters:
    A constant factor keeps every shape and changes every layer.

Example:
    Granite's residual_multiplier was 0.22 when pinned and is 1.0 now.

What to do:
    Restore the multiplier that the weights were trained with.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_rows

RULE = Rule(
    "T106",
    "branch-scale-mismatch",
    "restore the multiplier that the weights were trained with",
    lab=(32, 33, 43),
)

FIELDS = (".attention_branch_scale", ".cross_attention_branch_scale", ".mlp_branch_scale")


def check(audit: Audit) -> Iterator[Finding]:
    """Contract rows of these fields on which the witnesses disagree."""
    yield from from_rows(RULE, audit, lambda field: field.endswith(FIELDS))
