"""A projection that is declared without a bias has one in the checkpoint.

What it means:
    A bias lies beside the weight of a projection.

Why it matters:
    The loader ignores it, and a trained shift is lost.

Example:
    attention_bias is false and model.layers.0.self_attn.q_proj.bias is stored.

What to do:
    Find out whether the model was trained with it. If so, declare the bias (usually a config field); remove the
    tensor only if that model adds none.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule
from blockaudit.rules.by_place import is_branch_bias, run_otherwise, strangers_at

RULE = Rule(
    "T108",
    "branch-bias-unexpected",
    "declare the bias (usually in config.json) if the trained model adds it; remove it only if it adds none",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Unexpected keys of this place, and biases that are run where none is declared."""
    yield from strangers_at(RULE, audit, "branch_bias", "no bias")
    yield from run_otherwise(RULE, audit, is_branch_bias, False)
