"""A causal attention is run without its mask: a row reads later rows.

What it means:
    The manifest declares causal self-attention, and replay of the masking that the code runs leaves weight on later
    positions. The leak is inside the attention: the residual add after it mixes no positions.

Why it matters:
    Losses look better than they are, since each token sees the one that it is to predict, and generation falls apart.

Example:
    An attention called with attention_mask=None where the layer's caller was to pass the causal mask.

What to do:
    Mask the scores of later positions before the softmax.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, disagreeing, opposed, row_finding

RULE = Rule("T116", "causal-leak", "mask the scores of later positions before the softmax", lab=(5,))
CAUSAL, OPEN = "causal_self_attention", "self_attention"


def check(audit: Audit) -> Iterator[Finding]:
    """Branches that are declared causal and run open."""
    for row in disagreeing(audit, lambda field: field.endswith(".kind")):
        _, declared, _, other = opposed(row)
        if (declared.value, other.value) == (CAUSAL, OPEN):
            yield row_finding(RULE, [row])
