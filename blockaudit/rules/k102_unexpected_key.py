"""A tensor of the checkpoint belongs to nothing that the manifest declares.

What it means:
    The key is neither an expected one nor a buffer or part that the family is known to carry.

Why it matters:
    A loader ignores it: trained weights may be silently lost, or the checkpoint is of another architecture.

Example:
    model.layers.0.self_attn.extra_proj.weight.

What to do:
    Find out what wrote it. Declare it if the model was trained with it; remove it if no code reads it.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.checkpoint.recognise import is_adapter
from blockaudit.reconcile.attribute import strangers
from blockaudit.reconcile.audit import Audit, Reconciled
from blockaudit.reconcile.expand import keys
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "K102",
    "unexpected-key",
    "find out what wrote it: declare it if the trained model uses it, else remove it",
    lab=(25,),
)


def check(audit: Audit) -> Iterator[Finding]:
    """Keys that nothing claims; buffers that code derives, and parts that the class does not have, are notes."""
    for stranger in strangers(audit):
        if stranger.place in ("other", "branch", "derived") and not stranger.beside:
            derived = stranger.place == "derived"
            what = "derived buffer" if derived else "unexpected"
            yield RULE.finding(
                stranger.subject,
                f"{len(stranger.keys)} {what}: {stranger.spelling}",
                tensors=stranger.keys,
                expected="no such key",
                observed=list(stranger.shape),
                evidence="tensor headers",
                severity="note" if derived else None,
                help="nothing: code computes it again" if derived else _MERGE if is_adapter(stranger.keys[0]) else None,
            )
    if audit.reconciled is not None:
        for what, (subject, found) in _known(audit.reconciled).items():
            yield RULE.finding(
                subject,
                f"{len(found)} tensor{'s' if len(found) > 1 else ''}: {what}",
                tensors=found,
                evidence="manifest",
                severity="note",
                help="nothing: the loader ignores it, and the manifest knows it",
            )


_MERGE = (
    "merge the adapter into the weights (merge_and_unload()) and save again, or store it apart; a loader would drop it"
)


def _known(reconciled: Reconciled) -> dict[str, tuple[str, list[str]]]:
    """Keys that the manifest knows and the class does not load, by the reason."""
    binding, known = reconciled.binding, dict[str, tuple[str, list[str]]]()
    for key, part in binding.foreign.items():
        what = f"{part} is not a part of {reconciled.declared.class_name or 'this class'}"
        known.setdefault(what, (part, []))[1].append(key)
    for t in binding.templates:
        e = t.expected
        if t.found and (e.derived or e.ignored):
            what = f"{e.role} is a buffer that code derives" if e.derived else f"the class ignores {e.stack}"
            subject = e.owner if e.derived else e.stack or e.owner
            known.setdefault(what, (subject, []))[1].extend(k for k in keys(e) if k in binding.tensors)
    return known
