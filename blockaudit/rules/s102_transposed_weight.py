"""A weight has its two dimensions in the other order.

What it means:
    The stored shape is the expected one reversed.

Why it matters:
    Square neighbours of the same kind would be transposed as well, and their shapes hide it.

Example:
    GPT-2 stores c_fc as [d, 4d]; a Linear stores [4d, d].

What to do:
    Transpose it, and look at the square weights that were written with it: their shapes cannot show whether they were
    transposed too. Declare the layout `[in, out]` only if the class that loads it reads it so (GPT-2's Conv1D).
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, across

RULE = Rule(
    "S102",
    "transposed-weight",
    "transpose it, and check the square weights written with it, whose shapes cannot show it; declare the layout "
    "`[in, out]` only if the class reads it so",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Shapes that are the expected ones reversed."""
    for t, odd in audit.reconciled.shapes.transposed if audit.reconciled else ():
        yield RULE.finding(
            t.expected.owner,
            f"{across(t, [m.key for m in odd])} is transposed",
            tensors=[m.key for m in odd],
            expected=list(odd[0].expected),
            observed=list(odd[0].found),
            evidence="tensor headers",
        )
