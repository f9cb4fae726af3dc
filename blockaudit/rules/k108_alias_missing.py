"""A tensor lives only as the alias of another one, and the alias is not declared.

What it means:
    The head is not stored and config.json does not tie it, or the tensor that others alias is the one that is
    absent.

Why it matters:
    The loader initialises it: logits are noise.

Example:
    tie_word_embeddings is false and there is no lm_head.weight.

What to do:
    Store the tensor. Declare the tie in config.json only if the model was trained tied.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "K108",
    "alias-missing",
    "store the tensor; declare the tie in config.json only if the model was trained tied",
    lab=(53,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Pairs of which one half is absent and the tie would have to supply it."""
    for tie in audit.reconciled.ties if audit.reconciled and audit.keys_known else ():
        if tie.declared is False and not tie.key_stored and tie.source_stored:
            absent, there = tie.key, tie.source
        elif tie.declared and tie.key_stored and not tie.source_stored:
            absent, there = tie.source, tie.key
        else:
            continue
        yield RULE.finding(
            f"tie.{tie.key}",
            f"{absent} is not stored; {there} is, and the tie is {'declared' if tie.declared else 'not declared'}",
            tensors=(absent, there),
            expected=f"{absent}, or a declared tie",
            observed="neither" if not tie.declared else there,
            evidence=f"declared: {tie.evidence}",
        )
