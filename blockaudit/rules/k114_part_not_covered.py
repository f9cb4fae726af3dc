"""SOURCE holds more than the model that was audited.

What it means:
    States of optimizers, schedules and generators lie beside the model's tensors. They are read over and not audited.

Why it matters:
    The verdict says nothing about whether training can be resumed from this checkpoint.

Example:
    A torch.distributed checkpoint with 582 tensors under `optimizer.`.

What to do:
    Nothing, where only the model is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "K114",
    "part-not-covered",
    "nothing, where only the model is wanted",
    severity="note",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
