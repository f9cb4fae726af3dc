"""A pickle asks for a callable that no state dict needs.

What it means:
    Loading the file would import and call the named function. blockaudit reads pickles with a machine that
    calls nothing, and stops here.

Why it matters:
    Whoever unpickles this file runs its author's code.

Example:
    pytorch_model.bin calls os.system.

What to do:
    Convert it to safetensors where it was made; do not load it.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "F111",
    "unsafe-pickle",
    "convert it to safetensors where it was made; do not load it",
    waivable=False,
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
