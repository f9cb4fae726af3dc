"""A tensor of the checkpoint belongs to nothing that the manifest declares.

What it means:
    The key is neither an expected one nor a buffer or part that the family is known to carry.

Why it matters:
    A loader ignores it: trained weights may be silently lost, or the checkpoint is of another architecture.

Example:
    model.layers.0.self_attn.extra_proj.weight.

What to do:
    Remove the tensor, or declare what it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.attribute import strangers
from blockaudit.reconcile.audit import Audit
from blockaudit.reconcile.expand import keys
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "K102",
    "unexpected-key",
    "remove the tensor, or declare what it is",
    lab=(25,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Keys that nothing claims; buffers that code derives, and parts that the class does not have, are notes."""
    if not audit.keys_known:
        return
    for stranger in strangers(audit.reconciled):
        if stranger.place in ("other", "branch", "derived"):
            derived = stranger.place == "derived"
            yield RULE.finding(
                stranger.subject,
                f"{len(stranger.keys)} {'derived buffer' if derived else 'unexpected'}: {stranger.spelling}",
                tensors=stranger.keys,
                expected="no such key",
                observed=list(audit.reconciled.binding.tensors[stranger.keys[0]].shape),
                evidence="tensor headers",
                severity="note" if derived else None,
                help="nothing: code computes it again" if derived else None,
            )
    yield from _known(audit)


def _known(audit: Audit) -> Iterator[Finding]:
    binding = audit.reconciled.binding
    parts: dict[str, list[str]] = {}
    for key, part in binding.foreign.items():
        parts.setdefault(f"{part} is not a part of {audit.reconciled.declared.class_name or 'this class'}", []).append(
            key
        )
    for t in binding.templates:
        if t.found and (t.expected.derived or t.expected.ignored):
            kind = "derived buffer" if t.expected.derived else "the class ignores this part"
            parts.setdefault(f"{kind}: {t.expected.owner}", []).extend(
                k for k in keys(t.expected) if k in binding.tensors
            )
    for what, found in parts.items():
        yield RULE.finding(
            what.rpartition(": ")[2],
            f"{what}: {len(found)} tensors",
            tensors=found,
            evidence="manifest",
            severity="note",
            help="nothing: the loader ignores it, and the manifest knows it",
        )
