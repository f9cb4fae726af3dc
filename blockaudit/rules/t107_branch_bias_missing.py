"""A projection that is declared with a bias has none in the checkpoint.

What it means:
    The weight is there and the bias is not.

Why it matters:
    The loader initialises it, usually with zeros: attention scores or the update shift.

Example:
    Qwen2 has biases on q, k and v: model.layers.0.self_attn.q_proj.bias is absent.

What to do:
    Restore the bias: a missing one is not a zero bias. Correct the config field that declares it only if the model
    was trained without one.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule
from blockaudit.rules.by_place import is_branch_bias, missing_at, run_otherwise

RULE = Rule(
    "T107",
    "branch-bias-missing",
    "restore the bias: a missing one is not a zero bias; correct config.json only if the model was trained without one",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Expected keys of this place that are not there, and biases that are stored and not run."""
    yield from missing_at(RULE, audit, "branch_bias", "a bias")
    yield from run_otherwise(RULE, audit, is_branch_bias, True)
