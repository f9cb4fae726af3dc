"""An adapter adapts something that is not there to be adapted.

What it means:
    A key belongs to no module that adapter_config.json targets or saves, or, with --base, its module is not in the base
    model.

Why it matters:
    A loader drops such keys with a warning at most: what was trained in them is lost.

Example:
    lora_A of self_attn.k_proj, where target_modules lists q_proj and v_proj; lora_A of self_attn.qkv_proj for a base
    that has q_proj, k_proj and v_proj.

What to do:
    Give the base that the adapter was trained on, or the adapter_config.json that was saved with these weights.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "K116",
    "adapter-target-mismatch",
    "give the base that the adapter was trained on, or the adapter_config.json that was saved with these weights",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
