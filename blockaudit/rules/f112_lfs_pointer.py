"""A weight file is a Git LFS pointer and not the weights.

What it means:
    The file is a text of three lines that names the size and hash of the real one.

Why it matters:
    The repository was cloned without LFS: no weights are here at all.

Example:
    model.safetensors is a pointer to 5,368,709,120 bytes.

What to do:
    Run `git lfs pull` in the repository that the folder was cloned from.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "F112",
    "lfs-pointer",
    "run `git lfs pull` in the repository that the folder was cloned from",
    waivable=False,
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
