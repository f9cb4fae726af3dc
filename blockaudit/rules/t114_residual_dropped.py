"""A branch takes the place of the state: nothing adds the shortcut back.

What it means:
    What is run gives the next branch the output of this one alone; the factor on the shortcut is zero.

Why it matters:
    Everything that earlier layers wrote into the state is lost there, and no shape shows it.

Example:
    A layer that returns attention(norm(x)) where x + attention(norm(x)) was trained.

What to do:
    Add the branch's output to the state that it was computed from.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, disagreeing, opposed, row_finding

RULE = Rule("T114", "residual-dropped", "add the branch's output to the state that it was computed from")

# A factor that was fitted to numbers carries their rounding.
MEASURED = 1e-2


def check(audit: Audit) -> Iterator[Finding]:
    """Shortcuts that are declared, and executed or measured with a factor of zero."""
    for row in disagreeing(audit, lambda field: field.endswith(".shortcut_scale")):
        _, _, witness, other = opposed(row)
        slack = {"executed": 0.0, "measured": MEASURED}.get(witness)
        if slack is not None and isinstance(other.value, int | float) and abs(other.value) <= slack:
            yield row_finding(RULE, [row])
