"""A projection that is declared without a bias has one in the checkpoint.

What it means:
    A bias lies beside the weight of a projection.

Why it matters:
    The loader ignores it, and a trained shift is lost.

Example:
    attention_bias is false and model.layers.0.self_attn.q_proj.bias is stored.

What to do:
    Declare the bias (usually a config field), or remove it.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.attribute import strangers
from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "T108",
    "branch-bias-unexpected",
    "declare the bias (usually a config field), or remove it",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Unexpected keys of this place."""
    for stranger in strangers(audit):
        if stranger.place == "branch_bias":
            yield RULE.finding(
                stranger.subject,
                f"{len(stranger.keys)} unexpected: {stranger.spelling}",
                tensors=stranger.keys,
                expected="no bias",
                observed=list(stranger.shape),
                evidence="tensor headers",
            )
