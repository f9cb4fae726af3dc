"""A norm that is declared without a bias has one in the checkpoint.

What it means:
    A bias lies beside the weight of a scale-only norm.

Why it matters:
    A loader drops it or, worse, applies it: a scale-only RMSNorm with a bias is another function.

Example:
    model.layers.0.post_attention_layernorm.bias beside an RMSNorm weight.

What to do:
    Find out whether the model was trained with it. If so, declare the bias, or the family that has one; remove the
    tensor only if that model adds none. A bias that training moved is part of the function.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule
from blockaudit.rules.by_place import is_norm_bias, run_otherwise, strangers_at

RULE = Rule(
    "N105",
    "norm-bias-unexpected",
    "declare the bias if the trained model adds it; remove the tensor only if that model adds none",
    lab=(14,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Unexpected keys of this place, and biases that are run where none is declared."""
    yield from strangers_at(RULE, audit, "norm_bias", "no bias")
    yield from run_otherwise(RULE, audit, is_norm_bias, False)
