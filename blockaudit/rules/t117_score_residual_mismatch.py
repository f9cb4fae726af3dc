"""Attention scores of earlier layers join a later layer's before the softmax, and the manifest says otherwise.

What it means:
    The operators add products of queries and keys of an earlier attention (RealFormer's score residual), where the
    manifest declares none; or they do not, or not in the declared form (running sum or running mean).

Why it matters:
    This route carries [B, heads, S_q, S_k] between attentions of one family. It is not the hidden state's residual, it
    has no parameters, and so no key and no shape of a checkpoint shows it: the same weights compute another function.

Example:
    softmax(scores + previous_scores + mask) in a BERT whose weights were trained without previous_scores; one route
    that self-attention and cross-attention share.

What to do:
    Run the attention that the weights were trained under. Declare the branch's `score_route` only if that is what
    they were trained with.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_rows

RULE = Rule(
    "T117",
    "score-residual-mismatch",
    "run the attention that the weights were trained under; declare score_route only if they were trained with it",
    lab=(35, 46),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Routes that are run in another form than is declared, `none` among them."""
    yield from from_rows(RULE, audit, lambda field: field.endswith(".score_route"))
