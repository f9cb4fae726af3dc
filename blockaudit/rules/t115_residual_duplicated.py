"""The shortcut is added more than once.

What it means:
    What is run adds the state a whole number of times where the manifest adds it once.

Why it matters:
    The state doubles at every such add, and what a branch writes weighs half of what was trained.

Example:
    A fused kernel that returns x + branch(x), to which the caller adds x again.

What to do:
    Add the shortcut at one place: in the kernel or in its caller.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, disagreeing, opposed, row_finding
from blockaudit.rules.t114_residual_dropped import MEASURED

RULE = Rule(
    "T115",
    "residual-duplicated",
    "add the shortcut at one place: in the kernel or in its caller",
    lab=(52,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Shortcuts that are run with a whole number of times their declared factor."""
    for row in disagreeing(audit, lambda field: field.endswith(".shortcut_scale")):
        _, declared, witness, other = opposed(row)
        slack = {"executed": 1e-6, "measured": MEASURED}.get(witness)
        if slack is not None and _times(declared.value, other.value, slack):
            yield row_finding(RULE, [row])


def _times(declared: object, run: object, slack: float) -> bool:
    """Whether one number is two or more whole times the other, to a relative slack."""
    if not isinstance(declared, int | float) or not isinstance(run, int | float) or not declared:
        return False
    times = run / declared
    return round(times) >= 2 and abs(times - round(times)) <= slack * times
