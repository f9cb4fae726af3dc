"""A buffer that code derives holds something else than the code would compute.

What it means:
    Its shape, or (for rotary frequencies) its first entry, is not the derived one.

Why it matters:
    Some loaders copy stored buffers over the computed ones: positions are then encoded wrongly.

Example:
    rotary_emb.inv_freq begins with 0.0 after a load on the meta device; it begins with 1.0.

What to do:
    Remove the buffer; the code computes it.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.checkpoint.values import read_vector
from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "K112",
    "derived-buffer-mismatch",
    "remove the buffer; the code computes it",
    severity="warning",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Derived buffers of another shape, or rotary frequencies that do not begin with one."""
    if audit.reconciled is None:
        return
    for t in audit.reconciled.binding.templates:
        if not (t.expected.derived and t.found):
            continue
        if t.misshapen:
            yield RULE.finding(
                t.expected.template,
                f"{len(t.misshapen)} derived buffers of another shape",
                tensors=tuple(m.key for m in t.misshapen),
                expected=list(t.misshapen[0].expected),
                observed=list(t.misshapen[0].found),
                evidence="tensor headers",
            )
        elif t.expected.role == "inv_freq" and t.example is not None:
            stats = read_vector(audit.checkpoint, audit.reconciled.binding.stored(t.example))
            if stats is not None and abs(stats.maximum - 1.0) > 1e-3:
                yield RULE.finding(
                    t.expected.template,
                    f"the largest rotary frequency is {stats.maximum:.6g}",
                    tensors=(t.example,),
                    expected=1.0,
                    observed=stats.maximum,
                    evidence=t.example,
                )
