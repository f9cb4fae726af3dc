"""A weight file ends before its last tensor does.

What it means:
    The header promises more bytes than the file has.

Why it matters:
    A loader that maps the file reads garbage or crashes; one that pads reads zeros where weights were.

Example:
    The header of model.safetensors needs 90,868,376 bytes and the file has 90,868,372.

What to do:
    Fetch the file again and compare its size and hash with the source's.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "F102",
    "truncated-file",
    "fetch the file again and compare its size and hash with the source's",
    waivable=False,
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
