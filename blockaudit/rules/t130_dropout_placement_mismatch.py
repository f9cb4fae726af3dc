"""A dropout stands elsewhere, or drops otherwise, than the manifest declares.

What it means:
    It acts on the other side of the residual add or on the shortcut, or its mask is drawn for other axes or scaled
    otherwise.

Why it matters:
    A dropout after the add or on the shortcut erases parts of the state that the identity path is there to keep.

Example:
    x = dropout(x + attention(norm(x))) where the manifest declares x + dropout(attention(norm(x))).

What to do:
    Drop the branch's update before it is added, as the weights were trained; where nothing is dropped (p = 0) this is
    only a note.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule
from blockaudit.rules.dropouts import contradicted, finding, highest

RULE = Rule(
    "T130",
    "dropout-placement-mismatch",
    "drop where the weights were trained to be dropped: the branch's update, before it is added",
    lab=(19, 20),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Contract rows of position, granularity, scaling and schedule; of a dropout that does not act they are notes."""
    rows = {r.field: r for r in audit.reconciled.rows} if audit.reconciled else {}
    for row, declared, witness, said in contradicted(audit, "position", "granularity", "scaling", "schedule"):
        if declared is None:
            continue  # the whole dropout is not declared
        p = rows.get(f"{row.field.rpartition('.')[0]}.p")
        still = p is not None and not any(highest(s) for s in p.statements.values())
        yield finding(RULE, row, declared, witness, said, "note" if still else None)
