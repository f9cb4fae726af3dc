"""The checkpoint holds an adapter and no model.

What it means:
    Every key belongs to a PEFT adapter. Its own keys and shapes were held to adapter_config.json; what it is added to
    was not read. With --base this is said of kinds that are not read alone: then only the base was audited.

Why it matters:
    An adapter changes a base model's function and has no block contract of its own.

Example:
    adapter_model.safetensors: 64 lora_A and lora_B tensors for q_proj and v_proj.

What to do:
    Name the base model with --base, or merge the adapter first.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "K110",
    "adapter-only",
    "name the base model with --base, or merge the adapter first",
    severity="warning",
    unverified=True,
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
