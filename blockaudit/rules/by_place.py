"""Findings for keys that are missing or unexpected at one place of the contract: one fault, one rule."""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.attribute import Place, missing, strangers
from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, across


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
