"""A norm that the manifest declares has no weight in the checkpoint.

What it means:
    The key of a norm site inside a block, or of the embedding norm, is absent.

Why it matters:
    Loaders fill it with its initial value, without an error: the block runs with an untrained norm.

Example:
    model.layers.3.input_layernorm.weight is absent.

What to do:
    Restore the norm's weight; do not let a loader fill it with ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, gone_norms, row_finding
from blockaudit.rules.by_place import missing_at

RULE = Rule(
    "N102",
    "norm-missing",
    "restore the norm's weight; do not let a loader fill it with ones",
    lab=(44,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Expected keys of this place that are not there."""
    yield from missing_at(RULE, audit, "norm", "a norm weight")
    for row in gone_norms(audit, "norm"):
        yield row_finding(RULE, [row])
