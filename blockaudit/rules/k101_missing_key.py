"""A tensor that the manifest expects is not in the checkpoint.

What it means:
    No key, under any known wrapper or root, is the expected one.

Why it matters:
    Loading without strictness leaves it as initialised, and nothing says so.

Example:
    model.layers.1.mlp.experts.2.down_proj.weight is absent.

What to do:
    Restore the tensor; a loader would leave it at random values.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from blockaudit.reconcile.attribute import missing
from blockaudit.reconcile.audit import Audit
from blockaudit.records.binding import TemplateBinding
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, across

RULE = Rule(
    "K101",
    "missing-key",
    "restore the tensor; a loader would leave it at random values",
    lab=(25,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Missing keys that no more special rule names."""
    for place, t in missing(audit.reconciled) if audit.keys_known else ():
        if place == "other":
            yield RULE.finding(
                t.expected.owner,
                f"{len(t.missing)} of {len(t.missing) + t.found} missing: {across(t, t.missing)}{_nearest(audit, t)}",
                tensors=t.missing,
                expected=list(t.expected.shape),
                observed="no such tensor",
                evidence="tensor headers",
            )


def _nearest(audit: Audit, t: TemplateBinding) -> str:
    """The unexpected key that is spelt most like the first missing one."""
    near = get_close_matches(t.missing[0], audit.reconciled.binding.unexpected[:2000], 1, 0.8)
    return f"; the nearest unexpected key is {near[0]}" if near else ""
