"""The index names a shard that is not there.

What it means:
    A file that holds tensors according to the index does not exist in the folder.

Why it matters:
    A lenient loader leaves those tensors at random values.

Example:
    model-00002-of-00003.safetensors is named by the index and absent.

What to do:
    Fetch the missing shard, or write the index again.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "F106",
    "shard-missing",
    "fetch the missing shard, or write the index again",
    waivable=False,
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
