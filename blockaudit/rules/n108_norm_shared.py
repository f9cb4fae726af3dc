"""Two norm sites of one layer hold the very same trained numbers.

What it means:
    Different sites, that the manifest does not tie, have identical weights that are not constant, or one runs the norm
    of another.

Why it matters:
    A converter copied one norm into two places, or one instance was registered twice: one of the trained norms
    is lost.

Example:
    input_layernorm.weight and post_attention_layernorm.weight of layer 0 are equal byte by byte.

What to do:
    Store the norm that each site was trained with. Declare one instance for both only if the trained model has one.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.reconcile.norms import shared
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, diagnosed, from_rows

RULE = Rule(
    "N108",
    "norm-shared",
    "store the norm that each site was trained with; declare one instance only if the trained model has one",
    lab=(17,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Equal vectors at different sites of one layer, by pair of sites; and sites that run another site's norm."""
    yield from diagnosed(RULE, audit)
    yield from from_rows(RULE, audit, lambda field: field.endswith(".instance"))
    if audit.reconciled is None:
        return
    reconciled, pairs = audit.reconciled, dict[tuple[str, str], list[str]]()
    instance = {name: value.value for name, value in reconciled.declared.fields.items() if name.endswith(".instance")}
    for a, b in shared(reconciled.binding, reconciled.norms):
        owners = reconciled.norms.owner[a], reconciled.norms.owner[b]
        tied = instance.get(f"{owners[0]}.instance")
        if owners[0] != owners[1] and (tied is None or tied != instance.get(f"{owners[1]}.instance")):
            pairs.setdefault(owners, []).extend((a, b))
    for (one, other), keys in pairs.items():
        yield RULE.finding(
            one,
            f"{one} and {other} hold the same numbers in {len(keys) // 2} places",
            tensors=keys,
            expected="a norm of its own at each site",
            observed=f"equal to {other}",
            evidence="SHA-256 of the vectors",
        )
