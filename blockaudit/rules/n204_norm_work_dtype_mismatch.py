"""Moments are taken, or the cast back is made, in another precision or order.

What it means:
    The dtype of the reduction, or whether the result is cast before or after the multiply by the weight,
    differs.

Why it matters:
    Low-precision moments drift most where outlier channels live, in the last layers.

Example:
    LLaMA casts before the multiply, Gemma after it.

What to do:
    Run the moments in the declared dtype, and cast back where the trained implementation did.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_rows

RULE = Rule(
    "N204",
    "norm-work-dtype-mismatch",
    "run the moments in the declared dtype, and cast back where the trained implementation did",
    lab=(11,),
)

FIELDS = (".work_dtype", ".cast_order")


def check(audit: Audit) -> Iterator[Finding]:
    """Contract rows of these fields on which the witnesses disagree."""
    yield from from_rows(RULE, audit, lambda field: field.endswith(FIELDS))
