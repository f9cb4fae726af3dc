"""The gain is stored as the weight itself, or as its offset from one, against the declaration.

What it means:
    Witnesses differ on whether the norm multiplies by weight or by 1 + weight.

Why it matters:
    Every gain is wrong by one: w = 0.2 means 1.2, and 0.2 or 2.2 is used.

Example:
    Gemma's norms (1 + weight) run by a LLaMA kernel.

What to do:
    Load with the convention that the weights were saved under (weight, or 1 + weight).
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.contract import ContractRow
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, disagreeing, opposed, row_finding

RULE = Rule(
    "N202",
    "scale-offset-mismatch",
    "load with the convention that the weights were saved under (weight, or 1 + weight)",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Rows of scale_offset that disagree; statistics alone are a warning."""
    groups: dict[str, list[ContractRow]] = {}
    for row in disagreeing(audit, lambda field: field.endswith(".scale_offset")):
        groups.setdefault(repr([(s.value, s.bytes_read) for s in row.statements.values()]), []).append(row)
    for rows in groups.values():
        # Statistics are a hint; config.json or the operators are proof.
        only = opposed(rows[0])[3].bytes_read == "norm vectors" and len(rows[0].statements) == 2
        yield row_finding(RULE, rows, "warning" if only else None)
