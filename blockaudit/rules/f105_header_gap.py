"""Bytes of a weight file belong to no tensor.

What it means:
    There is a hole between two tensors, or bytes follow the last one.

Why it matters:
    The format requires every byte to be owned: unowned bytes are a sign of a broken writer or of hidden data.

Example:
    16 bytes follow the last tensor of model.safetensors.

What to do:
    Save the file again; bytes that no tensor owns may hide data or come from a broken writer.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "F105",
    "header-gap",
    "save the file again; bytes that no tensor owns may hide data or come from a broken writer",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
