"""A shard lies in the folder that the index does not name.

What it means:
    Its name is one of the series, and no key of the index maps to it.

Why it matters:
    It may be a leftover of another save, or hold tensors that are silently not loaded.

Example:
    model-00004-of-00004.safetensors is there and the index ends at 3.

What to do:
    Remove the stray shard, or write the index again.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "F107",
    "shard-unlisted",
    "remove the stray shard, or write the index again",
    severity="warning",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
