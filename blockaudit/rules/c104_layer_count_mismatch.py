"""The checkpoint holds another number of layers than config.json says.

What it means:
    Whole layers are absent, or layers lie past the last one.

Why it matters:
    A loader initialises the absent layers at random, or ignores the surplus ones.

Example:
    num_hidden_layers is 32 and layers 0-30 are stored.

What to do:
    Restore the missing layers. Correct the layer count in config.json only if the model was trained with the layers
    that are stored.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.reconcile.expand import ranges
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, disagreeing, row_finding

RULE = Rule(
    "C104",
    "layer-count-mismatch",
    "restore the missing layers; correct the layer count in config.json only if the model was trained so",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Stacks with layers wholly absent or surplus."""
    for gap in audit.reconciled.binding.gaps if audit.reconciled and audit.files_known else ():
        absent = f"; absent: layers {ranges(gap.absent)}" if gap.absent else ""
        surplus = f"; surplus: layers {ranges(gap.surplus)}" if gap.surplus else ""
        yield RULE.finding(
            f"{gap.stack}.layers",
            f"{gap.expected} layers are declared and {gap.stored} are stored{absent}{surplus}",
            expected=gap.expected,
            observed=gap.stored,
            evidence=gap.source,
        )
    yield from _pinned(audit)


def _pinned(audit: Audit) -> Iterator[Finding]:
    """A pinned count that config.json no longer gives is seen in the dimension it is pinned in."""
    gaps = {f"{g.stack}.layers" for g in audit.reconciled.binding.gaps} if audit.reconciled else set[str]()
    for row in disagreeing(audit, lambda field: field.endswith(".layers")):
        counts = [s.value for s in row.statements.values()]
        if row.field not in gaps and all(isinstance(n, int) and not isinstance(n, bool) for n in counts):
            yield row_finding(RULE, [row])
