"""Keys carry the name of a wrapper that training put around the model.

What it means:
    module. (DataParallel), _orig_mod. (torch.compile), _fsdp_wrapped_module., base_model.model. or base_layer. (PEFT)
    stands in the key.

Why it matters:
    A loader finds no key and, without strictness, loads nothing.

Example:
    module.model.layers.0.… for model.layers.0.…

What to do:
    Save the unwrapped module (model.module, model._orig_mod) or strip the prefix.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "K105",
    "wrapper-prefix",
    "save the unwrapped module (model.module, model._orig_mod) or strip the prefix",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Renames of this kind that were undone before matching."""
    for rename in audit.reconciled.binding.renames if audit.reconciled else ():
        if rename.kind == "wrapper":
            clash = f"; {len(rename.collisions)} would collide" if rename.collisions else ""
            yield RULE.finding(
                rename.old or rename.new,
                f"{rename.count} keys carry {rename.old!r}" + clash,
                tensors=(rename.example,),
                expected=rename.new,
                observed=rename.old,
                evidence="tensor headers",
            )
