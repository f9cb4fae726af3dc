"""Two witnesses give different factors on the embedding.

What it means:
    The number that multiplies the token embedding before the first layer differs.

Why it matters:
    The first state is too large or too small against every later update.

Example:
    Granite's embedding_multiplier was 12 when pinned and is absent now.

What to do:
    Restore the embedding multiplier.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_rows

RULE = Rule(
    "T111",
    "embedding-scale-mismatch",
    "restore the embedding multiplier",
)

FIELDS = (".embedding.scale",)


def check(audit: Audit) -> Iterator[Finding]:
    """Contract rows of these fields on which the witnesses disagree."""
    yield from from_rows(RULE, audit, lambda field: field.endswith(FIELDS))
