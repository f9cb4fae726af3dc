"""Two witnesses give different factors on the shortcut.

What it means:
    The number that multiplies the residual state before the add differs.

Why it matters:
    Every update of an earlier layer is multiplied by the shortcuts after it: the error compounds with depth.

Example:
    DeepNorm's alpha of a decoder-only stack used for an encoder-decoder.

What to do:
    Restore the shortcut factor (DeepNorm's alpha depends on the architecture and its depth).
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules import t114_residual_dropped
from blockaudit.rules.base import Rule, from_rows

RULE = Rule(
    "T109",
    "residual-scale-mismatch",
    "restore the shortcut factor (DeepNorm's alpha depends on the architecture and its depth)",
    lab=(32, 33, 43),
)

FIELDS = (".shortcut_scale",)


def check(audit: Audit) -> Iterator[Finding]:
    """Contract rows of these fields on which the witnesses disagree."""
    dropped = {f.subject for f in t114_residual_dropped.check(audit)}
    yield from (f for f in from_rows(RULE, audit, lambda field: field.endswith(FIELDS)) if f.subject not in dropped)
