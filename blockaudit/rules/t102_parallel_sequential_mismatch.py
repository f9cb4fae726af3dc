"""Two witnesses disagree on whether the branches run in parallel or one after the other.

What it means:
    In a parallel block both branches read the same state; in a sequential one the MLP reads the state after
    attention.

Why it matters:
    The key set is the same and the interaction term of the two branches is there or is not.

Example:
    GPT-NeoX with use_parallel_residual true when pinned and false now.

What to do:
    Restore the flag that the weights were trained under.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_rows

RULE = Rule(
    "T102",
    "parallel-sequential-mismatch",
    "restore the flag that the weights were trained under",
    lab=(24,),
)

FIELDS = (".parallel",)


def check(audit: Audit) -> Iterator[Finding]:
    """Contract rows of these fields on which the witnesses disagree."""
    yield from from_rows(RULE, audit, lambda field: field.endswith(FIELDS))
