"""Findings for keys that are missing or unexpected at one place of the contract: one fault, one rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from blockaudit.reconcile.attribute import Place, missing, strangers
from blockaudit.reconcile.audit import Audit
from blockaudit.records.contract import ContractRow
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, across, disagreeing, opposed, together


def missing_at(rule: Rule, audit: Audit, place: Place, what: str) -> Iterator[Finding]:
    """Expected keys of this place that are not there; `what` says what each would be."""
    for found, t in missing(audit):
        if found == place:
            yield rule.finding(
                t.expected.owner,
                f"{len(t.missing)} of {len(t.missing) + t.found} missing: {across(t, t.missing)}",
                tensors=t.missing,
                expected=what,
                observed="no such tensor",
                evidence="tensor headers",
            )


def strangers_at(rule: Rule, audit: Audit, place: Place, what: str) -> Iterator[Finding]:
    """Unexpected keys of this place; `what` says what the manifest declares instead."""
    for stranger in strangers(audit):
        if stranger.place == place:
            yield rule.finding(
                stranger.subject,
                f"{len(stranger.keys)} unexpected: {stranger.spelling}",
                tensors=stranger.keys,
                expected=what,
                observed=list(stranger.shape),
                evidence="tensor headers",
            )


def run_otherwise(rule: Rule, audit: Audit, wanted: Callable[[str], bool], declared: bool) -> Iterator[Finding]:
    """Biases that are stored as declared and run otherwise; of a norm of another family that is no fault of its own."""
    families = {row.field.rpartition(".")[0] for row in disagreeing(audit, lambda field: field.endswith(".family"))}

    def counts(row: ContractRow) -> bool:
        run = opposed(row)[2] in ("executed", "measured")
        return run and row.value("declared") is declared and row.field.rpartition(".")[0] not in families

    yield from together(rule, (row for row in disagreeing(audit, wanted) if counts(row)))


def is_norm_bias(field: str) -> bool:
    """Whether a contract field is the bias of a norm (`decoder.final_norm.bias`)."""
    return field.endswith(".bias") and not field.startswith("tie.")


def is_branch_bias(field: str) -> bool:
    """Whether a contract field is the bias of one projection (`decoder.mlp.bias.up`)."""
    return ".bias." in field
