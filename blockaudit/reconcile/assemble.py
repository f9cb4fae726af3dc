"""Hold a checkpoint against a manifest: bind, match, and let the two witnesses speak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockaudit.checkpoint.quantization.view import View, logical_view
from blockaudit.manifest.bind import bind, classes, config_classes
from blockaudit.manifest.values import Layered
from blockaudit.reconcile import contract, dims, match, norms, shapes, testimony, ties
from blockaudit.reconcile.audit import Reconciled
from blockaudit.reconcile.gguf import citing
from blockaudit.reconcile.gguf.spelling import spelt
from blockaudit.records.binding import Binding
from blockaudit.records.bound import BoundManifest
from blockaudit.records.checkpoint import Checkpoint, Container
from blockaudit.records.contract import Executed, Testimony
from blockaudit.records.manifest import Manifest

# Asks the executed witness about a bound manifest.
Execute = Callable[[BoundManifest], Executed]


def reconcile(
    checkpoint: Checkpoint,
    manifest: Manifest,
    config: dict[str, Any] | None,
    *,
    whole: bool,
    pins: bool = True,
    execute: Execute | None = None,
    measured: Testimony | None = None,
) -> Reconciled:
    """The checkpoint against this manifest. `whole` compares every byte of tied tensors, else sampled blocks.

    Without `pins` the tensors are held to what config.json says now, whatever the manifest froze. `execute` asks the
    executed witness, where the level asks for it. `measured` is what the numbers say; where they were asked, no field
    is required of the executed witness.
    """
    bound, binding = fitted(logical_view(checkpoint, config), manifest, config, pins, checkpoint.container)
    live = bound
    if bound.pinned:
        live = spelt(bind(manifest, config, pins=False, class_name=bound.class_name), checkpoint.container)
    account = shapes.explain(bound, binding, config, pins=pins)
    vectors = norms.read_norms(checkpoint, binding)
    tied = ties.examine(checkpoint, bound, binding, whole=whole)
    solved = dims.solved(bound, binding)
    said = [testimony.declared(bound, binding.quantised)]
    said.append(testimony.stored(live, bound, binding, solved, vectors, tied))
    executed = execute(bound) if execute is not None else None
    if executed is not None:
        said.append(executed.testimony)
    if measured is not None:
        said.append(measured)
    rows = citing.rows(contract.reconcile(said, graph=executed is not None and measured is None), checkpoint.container)
    return Reconciled(bound, binding, account, vectors, tied, rows, executed)


def trouble(reconciled: Reconciled) -> int:
    """How much speaks against this manifest: keys that do not fit, and fields on which the witnesses disagree."""
    return oddities(reconciled.binding) + sum(row.agrees is False for row in reconciled.rows)


def oddities(binding: Binding) -> int:
    """Keys missing, unexpected, or of a part that the class does not have; a root to be renamed counts each key."""
    odd = sum(len(t.missing) for t in binding.templates) + len(binding.unexpected) + len(binding.foreign)
    return odd + sum(r.count for r in binding.renames if r.kind == "prefix")


def fitted(
    view: View, manifest: Manifest, config: dict[str, Any] | None, pins: bool, container: Container | None
) -> tuple[BoundManifest, Binding]:
    """The manifest under this config, and the keys matched; where no class is named, the class that fits them best."""
    tried: list[tuple[BoundManifest, Binding]] = []
    layered: Layered = {}
    for name in config_classes(config)[:1] or classes(manifest) or [None]:
        bound = bind(manifest, config, pins=pins, class_name=name, layered=layered)
        if config is None:
            seen = dims.observed(bound, view.tensors)
            bound = bind(manifest, None, pins=pins, observed=seen, class_name=name)
        bound = spelt(bound, container)
        tried.append((bound, match.match(bound, view)))
    return min(tried, key=lambda item: oddities(item[1]))
