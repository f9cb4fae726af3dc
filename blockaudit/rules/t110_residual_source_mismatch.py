"""Two witnesses disagree on which value the shortcut carries.

What it means:
    The residual is taken from the state before the norm or from the norm's output.

Why it matters:
    The two differ by the norm, and no shape shows it.

Example:
    BLOOM's apply_residual_connection_post_layernorm was false when pinned and is true now.

What to do:
    Add the state that the weights were trained to update.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_rows

RULE = Rule(
    "T110",
    "residual-source-mismatch",
    "add the state that the weights were trained to update",
    lab=(4,),
)

FIELDS = (".shortcut_source",)


def check(audit: Audit) -> Iterator[Finding]:
    """Contract rows of these fields on which the witnesses disagree."""
    yield from from_rows(RULE, audit, lambda field: field.endswith(FIELDS))
