"""`inspect --candidate` without a SOURCE: a user's own module, of which nobody speaks but itself."""

from __future__ import annotations

from math import prod

from blockaudit import __version__
from blockaudit.pipeline.execution import needs_torch
from blockaudit.pipeline.reporting import Judging
from blockaudit.pipeline.suppress import settled
from blockaudit.reconcile import contract
from blockaudit.records.report import Finding, Report, Subject
from blockaudit.rules import (
    documentation,
    registry,
    t118_parameter_unconsumed,
    t119_residual_shape_mismatch,
    t120_graph_unclassified,
    t133_dropout_active_in_eval,
)


def alone(candidate: str, how: Judging) -> Report:
    """The contract as the module executes it: accepted where the graph was read, else unverified."""
    needs_torch()
    from blockaudit.graph.candidate import recordings
    from blockaudit.graph.witness import testify_alone

    low, exact, training = recordings(candidate, None)
    executed = testify_alone(low, exact, training)
    asked = {entry.rule.code for entry in how.rules}
    speak = (
        t118_parameter_unconsumed, t119_residual_shape_mismatch, t120_graph_unclassified, t133_dropout_active_in_eval,
    )  # fmt: skip
    findings = registry.ordered(f for rule in speak if rule.RULE.code in asked for f in rule.of(executed))
    rows = contract.reconcile([executed.testimony])
    unread = bool(executed.failure or executed.unread or not rows)

    def report(held: tuple[Finding, ...]) -> Report:
        return Report(
            kind="inspection",
            verdict=how.rejected(held) or ("unverified" if unread else "accepted"),
            level="graph",
            subject=_module(candidate, exact.sizes),
            manifest=None,
            contract=rows,
            findings=held,
            not_checked=tuple(r.field for r in rows),
            version=__version__,
            rules=documentation.texts(),
        )

    return settled(report, findings, how.rules, candidate, how.by)


def _module(candidate: str, sizes: dict[str, tuple[int, ...]]) -> Subject:
    """The module's parameters: it stores nothing, so that there are no bytes and no dtypes to tell of."""
    return Subject(candidate, "module", (), len(sizes), sum(prod(s) for s in sizes.values()), 0, {})
