"""There is a norm outside the layers that the manifest does not declare.

What it means:
    A one-dimensional tensor of a norm's name lies outside the layers.

Why it matters:
    Post-LN stacks end normalised: a final norm that the class ignores, or that it would apply twice, is a sign
    of another topology.

Example:
    encoder.final_layer_norm.weight in a Post-LN stack.

What to do:
    Find out whether the model was trained with it. If so, declare the final norm; remove the tensor only if that
    model runs none.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, diagnosed, new_norms, row_finding
from blockaudit.rules.by_place import strangers_at

RULE = Rule(
    "N107",
    "final-norm-unexpected",
    "declare the final norm if the trained model runs it; remove the tensor only if that model runs none",
    lab=(18,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Unexpected keys of this place."""
    yield from diagnosed(RULE, audit)
    yield from strangers_at(RULE, audit, "final_norm", "no norm here")
    for row in new_norms(audit, "final_norm"):
        yield row_finding(RULE, [row])
