"""There is no config.json beside the weights.

What it means:
    Epsilon, multipliers and flags that the tensors cannot show have no witness.

Why it matters:
    Loaders fall back to defaults of their code: an epsilon of 1e-5 for weights trained with 1e-6 keeps every
    shape.

Example:
    A single model.safetensors, without its folder.

What to do:
    Put the config.json of the model beside the weights.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "C101",
    "config-missing",
    "put the config.json of the model beside the weights",
    severity="warning",
    unverified=True,
)


def check(audit: Audit) -> Iterator[Finding]:
    """No config.json, or none that could be read."""
    checkpoint = audit.checkpoint
    invalid = any(f.rule == "config-invalid" for f in checkpoint.faults)
    if checkpoint.config is None and checkpoint.adapter is None and not invalid:
        yield RULE.finding(
            "config.json",
            "no config.json beside the weights: epsilon and every multiplier are unknown",
            expected="config.json",
            observed="no such file",
            evidence=checkpoint.source,
        )
