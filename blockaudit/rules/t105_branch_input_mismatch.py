"""Two witnesses disagree on what a branch reads.

What it means:
    Its input is another norm's output, the raw state, or memory in place of state.

Why it matters:
    Shapes agree; the branch was trained on rows of another distribution.

Example:
    A parallel block whose MLP reads the attention norm, wired to a norm of its own.

What to do:
    Feed the branch the state that it was trained on.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_rows

RULE = Rule(
    "T105",
    "branch-input-mismatch",
    "feed the branch the state that it was trained on",
    lab=(26,),
)

FIELDS = (".reads", ".sources.q", ".sources.k", ".sources.v")


def check(audit: Audit) -> Iterator[Finding]:
    """Contract rows of these fields on which the witnesses disagree."""
    yield from from_rows(RULE, audit, lambda field: field.endswith(FIELDS))
