"""A norm reduces over other axes than declared.

What it means:
    Declared and observed axes differ, or the weight of a q/k norm has the width of another axis.

Why it matters:
    Statistics over other axes couple other numbers: heads, tokens or examples.

Example:
    q_norm is [128] (per head) where [4096] (whole projection) is declared.

What to do:
    Normalise over the axes that the weight's shape shows.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, across, from_rows

RULE = Rule(
    "N203",
    "norm-axes-mismatch",
    "normalise over the axes that the weight's shape shows",
    lab=(6, 7, 8, 36),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Rows of reduction_axes that disagree, and inner norms whose weight spans another axis."""
    yield from from_rows(
        RULE,
        audit,
        lambda field: (
            field.endswith((".reduction_axes", ".scale"))
            and "embedding" not in field
            and not field.startswith("logits")
        ),
    )
    for t, odd in audit.reconciled.shapes.other if audit.reconciled else ():
        if t.expected.what == "norm" and ".inner." in t.expected.owner:
            yield RULE.finding(
                t.expected.owner,
                f"{across(t, [m.key for m in odd])} is {list(odd[0].found)}, not {' x '.join(t.expected.symbols)}",
                tensors=[m.key for m in odd],
                expected=list(odd[0].expected),
                observed=list(odd[0].found),
                evidence="tensor headers",
            )
