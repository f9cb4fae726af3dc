"""Two witnesses disagree on whether the shortcut is the identity.

What it means:
    One says the state is added as it is; the other scales, gates, projects or interpolates it.

Why it matters:
    The direct route of the gradient and of the state is another one.

Example:
    A gated shortcut where the manifest declares an identity.

What to do:
    Keep the shortcut that the weights were trained with.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_rows

RULE = Rule(
    "T113",
    "shortcut-not-identity",
    "keep the shortcut that the weights were trained with",
    lab=(32,),
)

FIELDS = (".residual.shortcut", ".residual.update")


def check(audit: Audit) -> Iterator[Finding]:
    """Contract rows of these fields on which the witnesses disagree."""
    yield from from_rows(RULE, audit, lambda field: field.endswith(FIELDS))
