"""A norm couples examples or positions and says nothing of padding.

What it means:
    Its statistics run over a population of rows, and the manifest does not say whether padded rows belong to
    it.

Why it matters:
    The output of a valid token then depends on the padding and on the batch it came in.

Example:
    A BatchNorm in the block with no padding_policy.

What to do:
    Declare padding_policy: which rows enter the statistics.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, shown

RULE = Rule(
    "N206",
    "padding-policy-missing",
    "declare padding_policy: which rows enter the statistics",
    lab=(38,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Declared couplings without a policy."""
    fields = audit.reconciled.declared.fields if audit.reconciled else {}
    for name, value in fields.items():
        subject = name.removesuffix(".couples")
        if subject != name and value.value and f"{subject}.padding_policy" not in fields:
            yield RULE.finding(
                subject,
                f"couples {shown(value.value)} and declares no padding policy",
                expected="padding_policy",
                observed=None,
                evidence="manifest",
            )
