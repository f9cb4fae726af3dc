"""No key of the checkpoint is one that the manifest expects.

What it means:
    Coverage is 0 %, also after wrappers and roots were taken off.

Why it matters:
    A loader without strictness reports success and leaves every weight random.

Example:
    A BERT checkpoint under a config.json of LLaMA.

What to do:
    Give the manifest of this checkpoint with --manifest, or check that this is the right folder.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.reconcile.expand import keys
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "K103",
    "nothing-loaded",
    "give the manifest of this checkpoint with --manifest, or check that this is the right folder",
    waivable=False,
)


def check(audit: Audit) -> Iterator[Finding]:
    """The key sets do not meet at all."""
    reconciled = audit.reconciled
    if reconciled is None or reconciled.binding.claimed or not audit.checkpoint.tensors or not audit.files_known:
        return
    expected = sum(len(keys(t.expected)) for t in reconciled.binding.templates)
    yield RULE.finding(
        reconciled.declared.manifest.architecture_id,
        f"none of {len(audit.checkpoint.tensors)} tensors matches the {expected} keys of the manifest",
        tensors=tuple(audit.checkpoint.tensors),
        expected=reconciled.binding.templates[0].expected.template if reconciled.binding.templates else None,
        observed=next(iter(audit.checkpoint.tensors)),
        evidence="tensor headers",
    )
