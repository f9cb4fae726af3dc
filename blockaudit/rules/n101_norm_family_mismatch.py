"""Two witnesses name different norm families.

What it means:
    One says LayerNorm where the other says RMSNorm, DyT or another transform.

Why it matters:
    Families differ in centring, scale and learned state; equal shapes do not make them equal functions.

Example:
    A row [3, 1, 1, 1]: LayerNorm gives [1.732, -0.577, -0.577, -0.577], RMSNorm [1.732, 0.577, 0.577, 0.577].

What to do:
    Load the weights into the family that they were trained in. Declare another one only if the model was trained
    with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_rows

RULE = Rule(
    "N101",
    "norm-family-mismatch",
    "load the weights into the family they were trained in; declare another only if the model was trained with it",
    lab=(13, 34, 49),
)

FIELDS = (".family",)


def check(audit: Audit) -> Iterator[Finding]:
    """Contract rows of these fields on which the witnesses disagree."""
    yield from from_rows(RULE, audit, lambda field: field.endswith(FIELDS))
