"""The executed graph could not be read, in whole or in part.

What it means:
    The class that config.json names cannot be built from its config alone, cannot be run on tokens alone, or its
    operators fit no reading that replay confirms.

Why it matters:
    Fields that only execution decides are then unknown, and an unknown field is never called right.

Example:
    A model type that the installed transformers does not have; a stack whose residual adds do not divide into layers.

What to do:
    Install the transformers release that has the class, or audit at the headers level and say so.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.contract import Executed
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "T120",
    "graph-unclassified",
    "install the transformers release that has the class, or audit at the headers level and say so",
    severity="warning",
    unverified=True,
)


def check(audit: Audit) -> Iterator[Finding]:
    """Why the executed witness is silent, and what it could not read."""
    if audit.run is not None:
        yield from of(audit.run)


def of(executed: Executed) -> Iterator[Finding]:
    """The findings of one executed witness."""
    for reason in filter(None, (executed.failure, *executed.unread)):
        yield RULE.finding("executed", reason, expected="a graph that replay confirms", evidence="operators")
