"""Query and key norms are declared and absent, or stored and not declared.

What it means:
    The norms over the projected queries and keys (inside attention) do not agree between manifest and keys.

Why it matters:
    They set the scale of the attention scores; without them every score is another.

Example:
    model.layers.0.self_attn.q_norm.weight is stored under a config without use_qk_norm.

What to do:
    Restore the weights that are absent: such a norm is skipped, not set to one. Of stored ones, declare what the
    model was trained with.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, gone_norms, new_norms, row_finding
from blockaudit.rules.by_place import missing_at, strangers_at

RULE = Rule(
    "N109",
    "qk-norm-mismatch",
    "restore the weights that are absent, or the model runs without the norm; declare only what it was trained with",
)


def check(audit: Audit) -> Iterator[Finding]:
    """q/k norms inside a branch."""
    yield from missing_at(RULE, audit, "qk_norm", "a norm weight")
    yield from strangers_at(RULE, audit, "qk_norm", "no norm inside this branch")
    for row in (*gone_norms(audit, "qk_norm"), *new_norms(audit, "qk_norm")):
        yield row_finding(RULE, [row])
