"""The index and the shards disagree about a key.

What it means:
    A key is mapped to a shard that does not hold it, a shard holds a key that the index does not list, or the
    index names a file outside the folder.

Why it matters:
    Loaders follow the index: the key is not found, or read from the wrong file.

Example:
    lm_head.weight is mapped to shard 1 and lies in shard 2.

What to do:
    Write the index again from the shards.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "F108",
    "index-mismatch",
    "write the index again from the shards",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
