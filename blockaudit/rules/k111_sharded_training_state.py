"""The checkpoint is a training state that is not a model yet.

What it means:
    Its tensors are FSDP flat parameters, ZeRO-3 placeholders of shape [0], or shards of a distributed
    checkpoint.

Why it matters:
    The model's tensors are not in it as such: what loads from it is empty or flat.

Example:
    _flat_param of 1,073,741,824 elements.

What to do:
    Gather the full state dict first (the message says how).
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "K111",
    "sharded-training-state",
    "gather the full state dict first (the message says how)",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
