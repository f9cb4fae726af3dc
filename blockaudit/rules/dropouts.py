"""Contract rows of dropout on which execution contradicts the manifest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from blockaudit.reconcile.audit import Audit
from blockaudit.reconcile.contract import same
from blockaudit.records.contract import ContractRow, Statement, Witness
from blockaudit.records.report import Finding, Severity
from blockaudit.rules.base import Rule, shown

# Dropout of what leaves the stack is no block's: manifests have no word for it.
_FIELD = re.compile(r"\.dropout\.(?!stack_output\.)\w+\.(\w+)$")
# Config may change a probability after it was pinned, and training code has to follow it.
_RUN: tuple[Witness, ...] = ("executed", "measured")


def contradicted(audit: Audit, *names: str) -> Iterator[tuple[ContractRow, Statement | None, Witness, Statement]]:
    """(row, what is declared if anything is, who says otherwise, what it says) of dropout fields of these names."""
    if audit.reconciled is None:
        return
    for row in audit.reconciled.rows:
        hit = _FIELD.search(row.field)
        if hit is None or hit[1] not in names:
            continue
        declared, stored = row.statements.get("declared"), row.statements.get("stored")
        if declared is not None and row.agrees is not False:
            continue
        for witness in _RUN:
            said = row.statements.get(witness)
            if said is not None and not any(s is not None and same(s.value, said.value) for s in (declared, stored)):
                yield row, declared, witness, said
                break


def highest(statement: Statement | None) -> float:
    """A probability, the highest where places have several, zero where it is not known."""
    value: Any = statement.value if statement is not None else None
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    return max((float(v) for v in values if isinstance(v, int | float)), default=0.0)


def finding(
    rule: Rule,
    row: ContractRow,
    declared: Statement | None,
    witness: Witness,
    said: Statement,
    severity: Severity | None,
) -> Finding:
    """One finding on one row."""
    subject, _, name = row.field.rpartition(".")
    wanted = f"declared {shown(declared.value)}" if declared else "not declared"
    evidence = f"declared: {declared.evidence}; " if declared else ""
    return rule.finding(
        subject,
        f"{name} is {wanted} and {witness} as {shown(said.value)}",
        expected=declared.value if declared else None,
        observed=said.value,
        evidence=f"{evidence}{witness}: {said.evidence}",
        severity=severity,
    )
