"""Two tensors that are declared tied hold different numbers.

What it means:
    config.json (or the class's default) ties them, both are stored, and their bytes differ.

Why it matters:
    Which of the two the model runs depends on the loader: the other is lost.

Example:
    tie_word_embeddings is true, and lm_head.weight is not model.embed_tokens.weight.

What to do:
    Store the trained tensor alone, so that nothing can differ. Untie config.json only if the two were trained
    apart.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "K107",
    "tied-weights-mismatch",
    "store the trained tensor alone; untie config.json only if the two were trained apart",
    lab=(53,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Declared ties whose stored bytes differ."""
    for tie in audit.reconciled.ties if audit.reconciled else ():
        if tie.declared and tie.equal is False:
            yield RULE.finding(
                f"tie.{tie.key}",
                f"{tie.key} and {tie.source} are declared tied and differ",
                tensors=(tie.key, tie.source),
                expected="equal bytes",
                observed="different bytes",
                evidence=f"declared: {tie.evidence}; stored: {tie.compared}",
            )
