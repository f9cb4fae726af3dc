"""A norm that is declared with a bias has none in the checkpoint.

What it means:
    The norm's weight is there and its bias is not.

Why it matters:
    A missing bias is not a zero bias: the family may be another one (RMSNorm), or a trained shift is lost.

Example:
    encoder.layer.0.output.LayerNorm.bias is absent.

What to do:
    Restore the bias from the checkpoint that was trained. Declare a norm without one only if the model was trained
    without: to declare away a bias that was lost hides the fault, and the model stays another one.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule
from blockaudit.rules.by_place import is_norm_bias, missing_at, run_otherwise

RULE = Rule(
    "N104",
    "norm-bias-missing",
    "restore the bias: a missing one is not a zero bias; declare none only if the model was trained without one",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Expected keys of this place that are not there, and biases that are stored and not run."""
    yield from missing_at(RULE, audit, "norm_bias", "a norm bias")
    yield from run_otherwise(RULE, audit, is_norm_bias, True)
