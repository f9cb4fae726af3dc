"""The candidate writes into the tensors that it is called with.

What it means:
    Token ids or the mask were not, after a forward pass, what they were before it.

Why it matters:
    Whoever calls the model again with the same tensors runs it on others: a second pass, a retry or a cache fill gives
    other logits, and no comparison of one pass shows it.

Example:
    input_ids.clamp_(max=vocab - 1) in the embedding's forward.

What to do:
    Work on a copy, or use the operator that returns a new tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule("V105", "inputs-changed", "work on a copy, or use the operator that returns a new tensor")


def check(audit: Audit) -> Iterator[Finding]:
    """One finding for all inputs that were written into."""
    run = audit.conformance
    if run is None or not run.touched:
        return
    names = ", ".join(run.touched)
    yield RULE.finding(
        run.touched[0],
        f"the candidate changed {names} while it ran",
        expected="inputs as they were given",
        observed=f"{names} changed",
        evidence=f"{run.candidate}: the tensors before and after a forward pass",
    )
