"""Every key has one root too many, too few, or another one.

What it means:
    One rename of the first segments makes the keys fit.

Why it matters:
    Loaders undo the base model's own prefix; any other root loads nothing.

Example:
    language_model.model.layers.0.… for model.layers.0.…

What to do:
    Rename the root (the message says how), or name the class that has these keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "K104",
    "prefix-mismatch",
    "rename the root, or name the class that has these keys",
)


def check(audit: Audit) -> Iterator[Finding]:
    """The root rename that was undone before matching; inside a larger model it is where the text stack stands."""
    for rename in audit.reconciled.binding.renames if audit.reconciled and not audit.nested else ():
        if rename.kind != "prefix":
            continue
        clash = f"; {len(rename.collisions)} would collide" if rename.collisions else ""
        loads = "; the class loads them so" if rename.loads else ""
        rule = json.dumps({"from": f"{rename.old}{{*}}", "to": f"{rename.new}{{*}}"})
        yield RULE.finding(
            rename.old or rename.new,
            f"{rename.count} keys fit once {rename.old!r} is replaced by {rename.new!r}{loads}{clash}",
            tensors=(rename.example,),
            expected=rename.new,
            observed=rename.old,
            evidence="tensor headers",
            severity="warning" if rename.loads else None,
            help=f"{RULE.help}; as a rule of a map: {rule}",
        )
