"""A tensor has another shape than the manifest derives for it.

What it means:
    The symbolic shape, with the dimensions of config.json, is not the stored one, and no single dimension
    explains it.

Why it matters:
    Loaders fail on it or, told to ignore sizes, leave the tensor random.

Example:
    model.layers.3.mlp.up_proj.weight is [63, 32] where [64, 32] follows.

What to do:
    Restore the tensor; compare with the checkpoint that it was exported from.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, across

RULE = Rule(
    "S101",
    "shape-mismatch",
    "restore the tensor; compare with the checkpoint that it was exported from",
    lab=(1, 2, 3),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Shapes that neither a transpose nor a wrong dimension explains; norm vectors have rules of their own."""
    for t, odd in audit.reconciled.shapes.other if audit.reconciled else ():
        if t.expected.what == "norm" and ".inner." in t.expected.owner:
            continue
        yield RULE.finding(
            t.expected.owner,
            f"{across(t, [m.key for m in odd])} is {list(odd[0].found)}, not {' x '.join(t.expected.symbols)}",
            tensors=[m.key for m in odd],
            expected=list(odd[0].expected),
            observed=list(odd[0].found),
            evidence="tensor headers",
        )
