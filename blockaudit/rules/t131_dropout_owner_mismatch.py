"""A dropout that the manifest declares acts with another probability, or not at all.

What it means:
    The place that this dropout belongs to takes the probability of another setting, or no dropout stands there.

Why it matters:
    Attention and residual dropout act on different tensors: one setting does not stand for the other.

Example:
    A block that drops attention probabilities with hidden_dropout_prob (0.1) and not with attention_dropout (0.0).

What to do:
    Give each place the probability of its own owner.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule
from blockaudit.rules.dropouts import contradicted, finding, highest

RULE = Rule(
    "T131",
    "dropout-owner-mismatch",
    "give each place the probability of its own owner",
    lab=(21,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Declared probabilities above zero that execution contradicts."""
    for row, declared, witness, said in contradicted(audit, "p"):
        if highest(declared):
            yield finding(RULE, row, declared, witness, said, None)
