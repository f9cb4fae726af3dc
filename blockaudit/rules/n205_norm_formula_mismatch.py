"""The norm is computed by another formula of the same family.

What it means:
    Epsilon outside the root, n - 1 in the variance, or another centring.

Why it matters:
    [1, 0, 0, 0] with epsilon 1e-5 gives 1.7320 by nn.LayerNorm and 1.5000 by std with n - 1.

Example:
    std + eps in a tutorial class that claims to be nn.LayerNorm.

What to do:
    Use the formula that the weights were trained under.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, disagreeing, from_rows

RULE = Rule(
    "N205",
    "norm-formula-mismatch",
    "use the formula that the weights were trained under",
    lab=(9, 10),
)

FIELDS = (".epsilon_location", ".variance_correction", ".center", ".algorithm", ".subset", ".groups")
# What follows from the family: of a norm of another family that is no fault of its own.
_OF_FAMILY = (".variance_correction", ".center")


def check(audit: Audit) -> Iterator[Finding]:
    """Contract rows of these fields on which the witnesses disagree."""
    families = {row.field.rpartition(".")[0] for row in disagreeing(audit, lambda field: field.endswith(".family"))}

    def wanted(field: str) -> bool:
        return field.endswith(FIELDS) and not (field.endswith(_OF_FAMILY) and field.rpartition(".")[0] in families)

    yield from from_rows(RULE, audit, wanted)
