"""The two contracts beside each other: what the target declares, what the source's manifest and config say."""

from __future__ import annotations

from blockaudit.migrate.check.differences import aligned_source
from blockaudit.migrate.work import Work
from blockaudit.records.bound import Resolved
from blockaudit.records.contract import ContractRow, Statement


def rows(work: Work) -> tuple[ContractRow, ...]:
    """One row for each contract field of the target; the source speaks where it has a manifest."""
    target = work.target.bound
    if target is None:
        return ()
    theirs = {} if work.source.bound is None else aligned_source(work).fields
    return tuple(_row(name, value, theirs.get(name)) for name, value in target.fields.items())


def _row(field: str, declared: Resolved, stored: Resolved | None) -> ContractRow:
    said = {"declared": _statement(declared, "target")}
    if stored is not None:
        said["stored"] = _statement(stored, "source")
    known = stored is not None and stored.known and declared.known
    agrees = None if not known or stored is None else stored.value == declared.value
    return ContractRow(field, said, agrees)  # pyright: ignore[reportArgumentType]


def _statement(value: Resolved, side: str) -> Statement:
    evidence = f"{side} {value.evidence}"
    return Statement(value.value, evidence, evidence, known=value.known)
