"""Two tensors claim the same bytes.

What it means:
    Their data_offsets overlap.

Why it matters:
    The safetensors format forbids it, because one tensor's update would change the other's and because overlaps
    hide data.

Example:
    a.weight owns bytes 0-4096 and b.weight bytes 2048-6144.

What to do:
    Save the tensors again, each with bytes of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "F104",
    "overlapping-tensors",
    "save the tensors again, each with bytes of its own",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
