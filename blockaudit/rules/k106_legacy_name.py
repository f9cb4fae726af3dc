"""A LayerNorm's parameters are called gamma and beta.

What it means:
    The last segment is the name that TensorFlow's code used.

Why it matters:
    Some loaders rename them and some ignore them; a loader that ignores them runs untrained norms.

Example:
    bert.embeddings.LayerNorm.gamma.

What to do:
    Save with weight and bias.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "K106",
    "legacy-name",
    "save with weight and bias",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Renames of this kind that were undone before matching."""
    for rename in audit.reconciled.binding.renames if audit.reconciled else ():
        if rename.kind == "legacy":
            clash = f"; {len(rename.collisions)} would collide" if rename.collisions else ""
            yield RULE.finding(
                rename.old or rename.new,
                f"{rename.count} parameters are called {rename.old} for {rename.new}"
                + ("; the class loads them so" if rename.loads else "")
                + clash,
                tensors=(rename.example,),
                expected=rename.new,
                observed=rename.old,
                evidence="tensor headers",
                severity="warning" if rename.loads else None,
            )
