"""A dropout acts that the manifest does not declare.

What it means:
    In train mode a value is dropped at a place whose owner has no dropout in the manifest, or has it at zero. Inside a
    block, at a place that no owner's name covers, this is a warning.

Why it matters:
    Training continues with noise that the architecture never had; not every block has residual dropout.

Example:
    A LLaMA layer written with x + dropout(attention(norm(x))): LLaMA drops no update.

What to do:
    Remove the dropout: the architecture's code decides, not the symmetry of a tutorial.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, shown
from blockaudit.rules.dropouts import contradicted, finding, highest

RULE = Rule(
    "T132",
    "dropout-unexpected",
    "remove the dropout: the architecture's code decides, not the symmetry of a tutorial",
    lab=(22,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Executed probabilities above zero where none is declared."""
    for row, declared, witness, said in contradicted(audit, "p"):
        if highest(said) and not highest(declared):
            yield finding(RULE, row, declared, witness, said, None)
    for row in audit.reconciled.rows if audit.reconciled else ():
        said = row.statements.get("executed")
        if said is not None and row.field.endswith(".dropout.unclassified"):
            yield RULE.finding(
                row.field.rpartition(".")[0],
                f"dropped where no owner is: {shown(said.value)}",
                observed=said.value,
                evidence=f"executed: {said.evidence}",
                severity="warning",
            )
