"""The checkpoint holds a branch that the manifest does not declare, or the other way round.

What it means:
    Keys of a branch (cross-attention) lie in a stack that has none, or witnesses list different branches.

Why it matters:
    A branch more or less is another architecture: parameters, inputs and the function differ.

Example:
    layers.0.crossattention.self.query.weight in a decoder-only stack.

What to do:
    Restore the branch. If the model was trained without it, audit it as the architecture that it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.attribute import strangers
from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, diagnosed, disagreeing, opposed, row_finding
from blockaudit.rules.t116_causal_leak import CAUSAL, OPEN

RULE = Rule(
    "T104",
    "branch-count-mismatch",
    "restore the branch; if the model was trained without it, name the manifest of that architecture",
    lab=(25,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Branch lists of different length or members, and keys of a branch that is not declared."""
    yield from diagnosed(RULE, audit)
    for row in disagreeing(audit, lambda field: field.endswith(".branch_order")):
        _, declared, _, other = opposed(row)
        # A causal attention that is run without its mask is still that branch: its own rule says so.
        kinds = sorted(declared.value), sorted(_as_declared(declared.value, other.value))
        if kinds[0] != kinds[1]:
            yield row_finding(RULE, [row])
    found = [s for s in strangers(audit) if s.place == "branch"]
    if found:
        keys = [k for s in found for k in s.keys]
        yield RULE.finding(
            found[0].spelling.partition("{n}")[0].rstrip("."),
            f"{len(keys)} tensors of a branch that the manifest does not declare ({found[0].spelling})",
            tensors=keys,
            expected="no such branch",
            observed=found[0].spelling,
            evidence="tensor headers",
        )


def _as_declared(declared: list[str], run: list[str]) -> list[str]:
    if len(declared) != len(run):
        return run
    return [d if (d, r) == (CAUSAL, OPEN) else r for d, r in zip(declared, run, strict=True)]
