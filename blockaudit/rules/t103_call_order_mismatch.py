"""Two witnesses order the branches of a block differently.

What it means:
    The sequence of branch kinds is not the same, and its members are.

Why it matters:
    Each branch reads what the earlier ones wrote: another order is another function of the same weights.

Example:
    Cross-attention before self-attention.

What to do:
    Restore the order of branches that the weights were trained under.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, diagnosed, disagreeing, opposed, row_finding

RULE = Rule(
    "T103",
    "call-order-mismatch",
    "restore the order of branches that the weights were trained under",
    lab=(24,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Branch lists of the same members in another order."""
    yield from diagnosed(RULE, audit)
    for row in disagreeing(audit, lambda field: field.endswith(".branch_order")):
        _, declared, _, other = opposed(row)
        kinds = sorted(declared.value), sorted(other.value)
        if kinds[0] == kinds[1]:
            yield row_finding(RULE, [row])
