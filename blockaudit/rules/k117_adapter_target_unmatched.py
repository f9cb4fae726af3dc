"""adapter_config.json targets a module that no key of the adapter belongs to.

What it means:
    A name in target_modules matched nothing: the base model has no such module, or its tensors were lost. With --base,
    a module that the base has is adapter-incomplete, and an error.

Why it matters:
    PEFT says nothing as long as one name matches: the adapter is smaller than its config says.

Example:
    target_modules lists query_key_value for a base whose modules are q_proj, k_proj and v_proj.

What to do:
    Take the name out of target_modules, or find out where its tensors went: --base SOURCE tells which it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "K117",
    "adapter-target-unmatched",
    "take the name out of target_modules, or find out where its tensors went: --base SOURCE tells which it is",
    severity="warning",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
