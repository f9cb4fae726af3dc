"""A dropout acts in evaluation mode.

What it means:
    The graph that was recorded after eval() still draws a random mask and multiplies a value by it, or two runs of one
    batch differ.

Why it matters:
    Outputs become random where one answer is expected, and no two evaluations agree.

Example:
    F.dropout(x, 0.1) without training=self.training: its default is to drop.

What to do:
    Pass training=self.training, or use nn.Dropout and call eval().
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.contract import Executed
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, diagnosed, from_rows

RULE = Rule(
    "T133",
    "dropout-active-in-eval",
    "pass training=self.training, or use nn.Dropout and call eval()",
    lab=(23,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Dropouts of the eval graph, else those that the numbers of repeated runs show."""
    yield from diagnosed(RULE, audit)
    if audit.run is not None and audit.run.random:
        yield from of(audit.run)
    else:
        yield from from_rows(RULE, audit, lambda field: ".dropout." in field and field.endswith(".active"))


def of(executed: Executed) -> Iterator[Finding]:
    """The finding of one executed witness: one, however many dropouts act."""
    first = next(iter(executed.random), None)
    if first is not None:
        more = f", and {len(executed.random) - 1} more" if len(executed.random) > 1 else ""
        yield RULE.finding(
            "executed",
            f"{first}{more}",
            expected="no dropout in eval mode",
            observed=list(executed.random),
            evidence="operators in eval mode",
        )
