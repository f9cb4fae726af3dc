"""Two witnesses place a norm at different points of the block.

What it means:
    One says before the branch, the other after it or after the add.

Why it matters:
    Pre-LN and Post-LN have the same tensors and are different functions.

Example:
    OPT's do_layer_norm_before was true when the manifest was pinned and is false now.

What to do:
    Keep the placement that the weights were trained under.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.contract import ContractRow
from blockaudit.records.layers import spoken
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_rows, moved_norms, opposed, site

RULE = Rule(
    "T101",
    "placement-mismatch",
    "keep the placement that the weights were trained under",
    lab=(15, 16),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Rows of placement that disagree, and norms that are run at another site of their branch."""
    yield from from_rows(RULE, audit, lambda field: field.endswith(".placement"))
    for left, entered in moved_norms(audit):
        if left is not None and entered is not None:
            yield RULE.finding(
                left.field.removesuffix(".present"),
                f"{left.field.rpartition('.')[0]} is declared, and {_by(left)} the norm stands at {site(entered)}",
                expected=site(left),
                observed=site(entered),
                evidence="; ".join(f"{w}: {s.evidence}" for w, s in left.statements.items()),
            )


def _by(left: ContractRow) -> str:
    """Who says that the norm is gone from here: config.json, or what is run."""
    _, _, witness, said = opposed(left)
    where = f" in {spoken(said.layers)}" if said.layers else ""
    return {"executed": "as executed", "measured": "as measured"}.get(witness, "by config") + where
