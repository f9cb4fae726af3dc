"""The matrices of an adapter do not fit each other, their config or the base.

What it means:
    lora_A is [r, in] and lora_B is [out, r]: both have one rank, it is the one that r or rank_pattern gives, and, with
    --base, in and out are those of the weight that they are added to.

Why it matters:
    A rank other than the config's is a load error at best; with a config that was changed to fit, the scale
    lora_alpha / r is wrong and every adapted module with it.

Example:
    lora_A is [4, 4096] and adapter_config.json says r = 8.

What to do:
    Use the adapter_config.json that was saved with these weights, and the base that they were trained on.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "S106",
    "adapter-shape-mismatch",
    "use the adapter_config.json that was saved with these weights, and the base that they were trained on",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
