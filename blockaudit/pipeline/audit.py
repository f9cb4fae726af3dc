"""One checkpoint as every witness sees it, and what the rules find in it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from blockaudit.checkpoint.quantization.view import logical_view
from blockaudit.checkpoint.source import open_checkpoint, open_part
from blockaudit.checkpoint.values import changed
from blockaudit.errors import RequestError
from blockaudit.manifest.library import Choice, Nearest, effective_config, speaks_of
from blockaudit.manifest.load import LoadedManifest, library
from blockaudit.pipeline.execution import executor, unmanifested
from blockaudit.pipeline.places import placed
from blockaudit.reconcile import expand, inside
from blockaudit.reconcile.assemble import reconcile, trouble
from blockaudit.reconcile.audit import Audit, NonFiniteTensor
from blockaudit.reconcile.gguf.config import configured
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.report import Finding
from blockaudit.rules import registry

# Called with what is read, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]


def opened(source: str, part: str | None = None, *, whole: bool = False) -> Checkpoint:
    """SOURCE, or one model of it where it is a folder of several modules. Raises RequestError."""
    if part is not None:
        return open_part(source, part, whole=whole)
    return open_checkpoint(source, whole=whole, speaks=speaks_of)


def needs_class(checkpoint: Checkpoint, what: str) -> None:
    """Raises RequestError where there is no config.json to have a class, or names, of (GGUF)."""
    if checkpoint.container is not None:
        raise RequestError(
            f"{checkpoint.source}: {what} the model class and the names of a Hugging Face checkpoint, and a GGUF file "
            "has neither: audit it at --level headers, or the checkpoint that it was converted from"
        )


def is_model(checkpoint: Checkpoint) -> bool:
    """Whether the tensors are a model's at all: a training state or an adapter has no block contract to reconcile."""
    return not any(f.rule in ("sharded-training-state", "adapter-only") for f in checkpoint.faults)


def audited(
    checkpoint: Checkpoint,
    choice: Choice | Nearest,
    level: str,
    non_finite: tuple[NonFiniteTensor, ...],
    candidate: str | None = None,
    trusted: bool = False,
) -> tuple[Audit, LoadedManifest | None]:
    """The checkpoint under the manifest chosen, as every witness that the level asks for sees it."""
    if isinstance(choice, Choice):
        checkpoint = configured(checkpoint, choice.loaded.manifest)
    config = effective_config(checkpoint.config)
    code = checkpoint.folder if trusted else None
    if isinstance(choice, Nearest):
        runs = config if is_model(checkpoint) else None
        alone = unmanifested(runs, checkpoint.source, candidate, code) if "graph" in level else None
        quantised = logical_view(checkpoint, config).quantised
        return (
            Audit(checkpoint, config, level, None, choice.id, choice.score, non_finite, alone, quantised=quantised),
            None,
        )
    # Families whose keys fit equally well are told apart by what else they say of this checkpoint.
    candidates = [choice.loaded, *(library(name) for name in choice.also)]
    whole = "values" in level
    executes = "graph" in level and config is not None
    loaded, reconciled = candidates[0], None
    if len(candidates) > 1 or not executes:
        tried = [(loaded, reconcile(checkpoint, loaded.manifest, config, whole=whole)) for loaded in candidates]
        loaded, reconciled = min(tried, key=lambda item: trouble(item[1]))
    if config is not None and executes:
        execute = executor(config, checkpoint.source, candidate, code)
        reconciled = reconcile(checkpoint, loaded.manifest, config, whole=whole, execute=execute)
    return Audit(checkpoint, config, level, reconciled, None, 0.0, non_finite), loaded


def findings_of(rules: tuple[registry.Entry, ...], audit: Audit, loaded: LoadedManifest | None) -> tuple[Finding, ...]:
    """What the rules find; under a pinned manifest the tensors are held to what config.json says now as well.

    Called after the reading: a file that has changed meanwhile is a fault that shows only then.
    """
    if later := changed(audit.checkpoint):
        audit = replace(audit, checkpoint=replace(audit.checkpoint, faults=(*audit.checkpoint.faults, *later)))
    found = registry.run(rules, audit)
    if loaded is None or audit.reconciled is None or audit.config is None or not audit.reconciled.declared.pinned:
        return placed(inside.as_stored(found, audit), audit, loaded)
    whole = "values" in audit.level
    live = reconcile(audit.checkpoint, loaded.manifest, audit.config, whole=whole, pins=False)
    also = registry.run(rules, replace(audit, reconciled=live))
    # What the pinned contract already names is not named again from the other side, by key or by field.
    named, subjects = {(f.code, f.subject) for f in found}, {f.subject for f in found}
    owner = {k: t.expected.owner for t in audit.reconciled.binding.templates for k in expand.keys(t.expected)}
    fresh = [
        f
        for f in also
        if (f.code, f.subject) not in named and not (f.tensors and all(owner.get(k) in subjects for k in f.tensors))
    ]
    return placed(inside.as_stored(registry.ordered([*found, *fresh]), audit), audit, loaded)
