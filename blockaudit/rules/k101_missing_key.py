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

from blockaudit.reconcile.attribute import layers_without, lost_branches, missing
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
    """Missing keys that no more special rule names; the tensors of one part (a head) are one finding."""
    parts: dict[str, list[TemplateBinding]] = {}
    for place, t in missing(audit):
        if place == "other":
            whole = t.expected.owner if t.expected.what == "part" else f"{t.expected.owner} {t.expected.template}"
            parts.setdefault(whole, []).append(t)
    lost = lost_branches(audit.reconciled) if parts and audit.reconciled is not None else {}
    for templates in parts.values():
        first, keys = templates[0], [k for t in templates for k in t.missing]
        also = f" and {len(templates) - 1} more of {first.expected.owner}" if len(templates) > 1 else ""
        total = sum(len(t.missing) + t.found for t in templates)
        yield RULE.finding(
            first.expected.owner,
            f"{len(keys)} of {total} missing: {across(first, first.missing)}{also}{_nearest(audit, first)}",
            tensors=keys,
            expected=list(first.expected.shape),
            observed="no such tensor",
            evidence="tensor headers",
            # A tensor that is lost is no failure of the lab; a branch fewer, as one more, is another architecture.
            lab=None if lost.get(first.expected.owner, frozenset()) & layers_without(first) else (),
        )


def _nearest(audit: Audit, t: TemplateBinding) -> str:
    """The unexpected key that is spelt most like the first missing one."""
    unexpected = audit.reconciled.binding.unexpected if audit.reconciled else ()
    if not unexpected:
        return ""
    from difflib import get_close_matches  # costs 2 ms at import

    near = get_close_matches(t.missing[0], unexpected[:2000], 1, 0.8)
    return f"; the nearest unexpected key is {near[0]}" if near else ""
