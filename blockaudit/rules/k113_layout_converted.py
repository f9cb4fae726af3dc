"""The container keeps tensors in another layout than the code of the model.

What it means:
    A converter has reordered rows or folded constants into weights. Names, shapes, counts and epsilon are held against
    the manifest as the container spells them; the order of the rows inside a tensor is not.

Why it matters:
    A wrong permutation of the rows of q and k leaves every shape right and the function wrong. Only running the model
    shows it.

Example:
    model.gguf, general.architecture: llama.

What to do:
    Nothing. To check the numbers, audit the checkpoint that was converted, with `blockaudit conform`.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, from_faults

RULE = Rule(
    "K113",
    "layout-converted",
    "nothing; conform the checkpoint that was converted to check the numbers",
    severity="note",
)


def check(audit: Audit) -> Iterator[Finding]:
    """Faults of this name that reading the files met."""
    yield from from_faults(RULE, audit)
