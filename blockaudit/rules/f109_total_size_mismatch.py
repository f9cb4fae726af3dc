"""The index's total_size is not the sum of the tensors' bytes.

What it means:
    The number counts something else, or is stale.

Why it matters:
    Tools size downloads and memory by it; a stale number often means that shards were exchanged one by one.

Example:
    total_size says 4,096 (the files' sizes) and the tensors have 3,584 bytes.

What to do:
    Set metadata.total_size to the sum of the tensors' bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "F109",
    "total-size-mismatch",
    "set metadata.total_size to the sum of the tensors' bytes",
    severity="warning",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
