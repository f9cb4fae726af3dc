"""A weight file cannot be read at all.

What it means:
    The file is of a kind that blockaudit does not open (an archive of code, another container, a device), the system
    refuses to read it, or it was replaced or written to between the reading of its header and that of its numbers.

Why it matters:
    Nothing that such a file holds is known, so nothing about it can be accepted.

Example:
    model.bin is a TorchScript archive: its tensors lie behind code that would have to run.

What to do:
    Give a safetensors file or a PyTorch state dict that this user may read, and that nothing writes to meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "F101",
    "unreadable-file",
    "give a safetensors file or a PyTorch state dict that this user may read",
    waivable=False,
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
