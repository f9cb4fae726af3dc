"""A layer holds a norm that the manifest does not declare.

What it means:
    A one-dimensional tensor of a norm's name lies in the layers and belongs to no declared site.

Why it matters:
    Either the checkpoint is of another topology (sandwich, extra inner norms) or a trained norm would be
    ignored.

Example:
    model.layers.0.pre_feedforward_layernorm.weight in a two-norm block.

What to do:
    Find out whether the model was trained with it. If so, declare the norm where it stands; remove the tensor only
    if that model runs none there.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, diagnosed, new_norms, row_finding
from blockaudit.rules.by_place import strangers_at

RULE = Rule(
    "N103",
    "norm-unexpected",
    "declare the norm if the trained model runs it there; remove the tensor only if that model runs none",
    lab=(44,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Unexpected keys of this place."""
    yield from diagnosed(RULE, audit)
    yield from strangers_at(RULE, audit, "norm", "no such norm")
    for row in new_norms(audit, "norm"):
        yield row_finding(RULE, [row])
