"""Query and key norms are declared and absent, or stored and not declared.

What it means:
    The norms over the projected queries and keys (inside attention) do not agree between manifest and keys.

Why it matters:
    They set the scale of the attention scores; without them every score is another.

Example:
    model.layers.0.self_attn.q_norm.weight is stored under a config without use_qk_norm.

What to do:
    Declare the q/k norms, or restore their weights; an absent one is skipped, not set to one.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.attribute import missing, strangers
from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, across, gone_norms, new_norms, row_finding

RULE = Rule(
    "N109",
    "qk-norm-mismatch",
    "declare the q/k norms, or restore their weights; an absent one is skipped, not set to one",
)


def check(audit: Audit) -> Iterator[Finding]:
    """q/k and other norms inside a branch."""
    if not audit.keys_known:
        return
    for place, t in missing(audit):
        if place == "qk_norm":
            yield RULE.finding(
                t.expected.owner,
                f"{len(t.missing)} of {len(t.missing) + t.found} missing: {across(t, t.missing)}",
                tensors=t.missing,
                expected="a norm weight",
                observed="no such tensor",
                evidence="tensor headers",
            )
    for stranger in strangers(audit):
        if stranger.place == "qk_norm":
            yield RULE.finding(
                stranger.subject,
                f"{len(stranger.keys)} unexpected: {stranger.spelling}",
                tensors=stranger.keys,
                expected="no norm inside this branch",
                observed=list(stranger.shape),
                evidence="tensor headers",
            )
    for row in (*gone_norms(audit, "qk_norm"), *new_norms(audit, "qk_norm")):
        yield row_finding(RULE, [row])
