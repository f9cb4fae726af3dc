"""An update and the state that it joins have different shapes.

What it means:
    The operators add an update that is broadcast over the state (one number a row, one row for all positions, one
    state for all heads), or concatenate the two where an add belongs.

Why it matters:
    The add runs without an error and every row, channel or head gets the same number; a concatenation gives the next
    layer another width. The branch's output was not merged and projected to [B,S,d_model] first.

Example:
    x + gate(x) with a gate of one output; x + attention(x).mean(1, keepdim=True); torch.cat((x, attention(x)), -1).

What to do:
    Merge heads and project the branch's output to the state's shape, then add it.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.contract import Executed
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "T119",
    "residual-shape-mismatch",
    "merge heads and project the branch's output to the state's shape, then add it",
    lab=(1, 2, 3),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Joins of the stream that are no sum of two values of one shape."""
    if audit.run is not None:
        yield from of(audit.run)


def of(executed: Executed) -> Iterator[Finding]:
    """The finding of one executed witness: the first such join, and how many follow."""
    if not executed.misshapen:
        return
    first, *others = executed.misshapen
    more = f"; {len(others)} more such joins follow" if others else ""
    yield RULE.finding("executed", first + more, expected="an update of the state's shape", evidence="operators")
