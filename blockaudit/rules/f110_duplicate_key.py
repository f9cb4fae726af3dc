"""One key names two tensors.

What it means:
    A JSON header or index repeats the key, or two shards hold it.

Why it matters:
    Readers differ in which one they take: the model depends on the reader.

Example:
    model.norm.weight lies in shard 1 and in shard 3.

What to do:
    Keep one tensor under the key and save again.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "F110",
    "duplicate-key",
    "keep one tensor under the key and save again",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
