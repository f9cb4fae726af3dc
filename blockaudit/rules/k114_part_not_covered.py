"""SOURCE holds more than the model that was audited.

What it means:
    Something lies beside the model: states of optimizers, schedules and generators; the vision tower, the projector or
    the audio encoder around a text stack; the other modules of a pipeline. It is counted and not audited.

Why it matters:
    The verdict speaks of the model that was audited, and says nothing of these.

Example:
    A torch.distributed checkpoint with 582 tensors under `optimizer.`; a LLaVA checkpoint with 391 tensors under
    `vision_tower.`.

What to do:
    Nothing, where only the model is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile import inside
from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "K114",
    "part-not-covered",
    "nothing, where only the model is wanted",
    severity="note",
)


def check(audit: Audit) -> Iterator[Finding]:
    """What reading the files met beside the model, and the parts of a larger model around its text stack."""
    yield from from_faults(RULE, audit)
    if audit.reconciled is None:
        return
    outer = (audit.checkpoint.config or {}).get("model_type")
    moved = inside.root(audit.reconciled)
    below = f", below {moved.old}" if moved is not None and moved.old else ""
    family = audit.reconciled.declared.manifest.architecture_id
    for part in inside.beside(audit):
        count = f"{len(part.keys):,} tensor{'' if len(part.keys) == 1 else 's'}"
        yield RULE.finding(
            part.name,
            f"{count} not covered: of {outer} only the text stack was audited ({family}{below})",
            tensors=part.keys,
            observed=len(part.keys),
            evidence="tensor headers",
        )
