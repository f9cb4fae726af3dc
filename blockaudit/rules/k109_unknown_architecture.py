"""No manifest of the library speaks of this checkpoint.

What it means:
    Its model type or class is not in the library, and its keys are those of no family closely enough.

Why it matters:
    Nothing was reconciled: no field of the block is known to be right.

Example:
    model_type is my_new_model.

What to do:
    Name a manifest with --manifest, or draft one with `blockaudit manifest draft`.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule

RULE = Rule(
    "K109",
    "unknown-architecture",
    "name a manifest with --manifest, or draft one with `blockaudit manifest draft`",
    severity="warning",
    unverified=True,
)


def check(audit: Audit) -> Iterator[Finding]:
    """No manifest was found, or the manifest does not know the class."""
    if any(f.rule in ("sharded-training-state", "adapter-only") for f in audit.checkpoint.faults):
        return  # not a model: its own rule says so
    if audit.reconciled is None and audit.checkpoint.format == "megatron-core":
        yield RULE.finding(
            "architecture",
            "this is a Megatron-core checkpoint: its keys and fused projections are Megatron's own, and no family's "
            "manifest speaks of them",
            expected="the key set of a family",
            observed="megatron-core",
            evidence="metadata.json",
            help="convert it to the Hugging Face layout with a migration map (megatron_llama, megatron_gpt) and audit "
            "the result, or name the manifest of its layout with --manifest",
        )
        return
    if audit.reconciled is None:
        config = audit.checkpoint.config or {}
        named = config.get("model_type")
        said = f"config.json names {named}, which" if named else "config.json names no model type, and the key set"
        said = said if audit.checkpoint.config else "there is no config.json, and the key set"
        near = f"; the nearest family by keys is {audit.nearest} ({audit.nearest_score:.0%})" if audit.nearest else ""
        yield RULE.finding(
            str(named or "architecture"),
            f"{said} is that of no family in the library{near}",
            expected="a model type or key set of the library",
            observed=config.get("architectures") or config.get("model_type"),
            evidence="config.json" if audit.checkpoint.config else "tensor headers",
        )
        return
    bound = audit.reconciled.declared
    if bound.unspelt:
        yield RULE.finding(
            bound.manifest.architecture_id,
            f"GGUF has no name for {len(bound.unspelt)} tensors of {bound.manifest.architecture_id} "
            f"({bound.unspelt[0]}): they were not audited",
            expected="a name for every tensor of the manifest",
            observed=list(bound.unspelt),
            evidence="the name tables of the gguf package",
        )
    known = {*bound.manifest.match.classes, bound.manifest.match.base_class}
    if bound.class_name is not None and known - {None} and bound.class_name not in known:
        yield RULE.finding(
            bound.class_name,
            f"the manifest {bound.manifest.architecture_id} does not know the class {bound.class_name}: "
            f"it was audited as {next(iter(bound.manifest.match.classes), bound.manifest.match.base_class)}",
            expected=sorted(k for k in known if k),
            observed=bound.class_name,
            evidence="config.json: architectures",
        )
