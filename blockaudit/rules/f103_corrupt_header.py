"""A header does not describe tensors that the format allows.

What it means:
    Its length, encoding, JSON, a dtype or a shape is not valid, or a shape does not give its byte range.

Why it matters:
    Two readers may make different tensors of such a file, and neither is right.

Example:
    [32, 64] of F32 is 8,192 bytes, and the data_offsets give 4,096.

What to do:
    Write the file again from its source; it cannot be repaired from what it says.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "F103",
    "corrupt-header",
    "write the file again from its source; it cannot be repaired from what it says",
    waivable=False,
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
