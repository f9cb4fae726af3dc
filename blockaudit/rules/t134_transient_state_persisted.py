"""The checkpoint stores state that lives for one forward pass or one request only.

What it means:
    A key has the name of a cache of keys and values, of a score route between layers, of a dropout mask or of a random
    number generator, and the manifest declares no such tensor.

Why it matters:
    Such state belongs to the rows of one call: loaded again, it is the history of another text. RealFormer's scores
    travel across the layers of one pass; keys and values are the history across decode steps; neither is a weight.

Example:
    model.layers.0.attention.prev_scores.

What to do:
    Remove the tensor, and register such state as a buffer with persistent=False.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule
from blockaudit.rules.by_place import strangers_at

RULE = Rule(
    "T134",
    "transient-state-persisted",
    "remove the tensor, and register such state as a buffer with persistent=False",
    lab=(47,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Unexpected keys of this place."""
    yield from strangers_at(RULE, audit, "transient", "no stored state of a single pass")
