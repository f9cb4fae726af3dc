"""The class builds parameters that no operator of its forward pass reads.

What it means:
    The class was run on tokens, and these parameters went into none of its operators.

Why it matters:
    They are stored, loaded and trained with weight decay alone, and change no output: a norm or a branch that
    somebody believes to act does not, or the checkpoint is larger than the function.

Example:
    A Linear that __init__ makes and forward never calls; a norm that a rewritten forward skips.

What to do:
    Call the module that owns them, or remove it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.reconcile.expand import ranges
from blockaudit.records.contract import Executed
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule("T118", "parameter-unconsumed", "call the module that owns them, or remove it", severity="note")
_MOST = 8  # groups that the message names; the finding's tensors are whole


def check(audit: Audit) -> Iterator[Finding]:
    """All parameters of the class that was run which no operator reads, in one finding."""
    if audit.run is not None:
        yield from of(audit.run)


def of(executed: Executed) -> Iterator[Finding]:
    """The finding of one executed witness."""
    idle, name = executed.idle, executed.class_name
    if not idle:
        return
    groups = _grouped(idle)
    more = f" and {len(groups) - _MOST} more" if len(groups) > _MOST else ""
    yield RULE.finding(
        name,
        f"{name} builds {len(idle)} parameters that no operator reads: {', '.join(groups[:_MOST])}{more}",
        tensors=idle,
        expected="every parameter is read",
        observed=f"{len(idle)} are not",
        evidence=f"operators of {name}",
    )


def _grouped(names: Iterable[str]) -> list[str]:
    """`layers.{l}.extra.weight (0-3)`: names that differ in their first number are one."""
    found: dict[str, list[int]] = {}
    for name in names:
        hit = re.search(r"(?<=\.)\d+(?=\.)", f".{name}")
        at = (hit.start() - 1, hit.end() - 1) if hit else None
        key = f"{name[: at[0]]}{{l}}{name[at[1] :]}" if at else name
        found.setdefault(key, []).extend([int(hit[0])] if hit else [])
    return [f"{key} (layers {ranges(numbers)})" if numbers else key for key, numbers in found.items()]
