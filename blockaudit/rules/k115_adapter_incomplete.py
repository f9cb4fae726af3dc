"""An adapter lacks part of what it needs.

What it means:
    A lora_A stands without its lora_B, or the reverse; a layer that others like it adapt has no pair; DoRA's magnitude
    vector, or a module that was to be saved whole, is not in the file.

Why it matters:
    A loader leaves what is missing as it creates it: lora_B at zero, so that the module is not adapted at all, and no
    error says so.

Example:
    base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight, and no lora_B beside it.

What to do:
    Save the adapter again from the trained model (save_pretrained), or restore the lost tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "K115",
    "adapter-incomplete",
    "save the adapter again from the trained model (save_pretrained), or restore the lost tensors",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
