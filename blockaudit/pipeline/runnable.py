"""What has to hold before numbers are run: a manifest, a class to build, files that fit, weights that are plain."""

from __future__ import annotations

from typing import Any

import msgspec

from blockaudit.errors import RequestError
from blockaudit.manifest.library import Choice, choose
from blockaudit.manifest.load import LoadedManifest
from blockaudit.pipeline.audit import audited, is_model, needs_class
from blockaudit.reconcile.audit import Audit, Reconciled
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.manifest import Manifest


class Prepared(msgspec.Struct, frozen=True):
    """A checkpoint that a manifest speaks of, as headers show it, with the config under which its class is built."""

    choice: Choice
    loaded: LoadedManifest
    audit: Audit
    reconciled: Reconciled
    config: dict[str, Any]


def prepared(checkpoint: Checkpoint, manifest: str | None) -> Prepared:
    """The manifest, what headers say under it, and config.json: all that a run needs. Raises RequestError."""
    needs_class(checkpoint, "a run needs")
    choice = choose(manifest, checkpoint) if is_model(checkpoint) else None
    audit, loaded = audited(checkpoint, choice, "headers", ()) if isinstance(choice, Choice) else (None, None)
    if not isinstance(choice, Choice) or audit is None or audit.reconciled is None or loaded is None:
        raise RequestError(
            f"{checkpoint.source}: no manifest speaks of it: name one with --manifest ID|FILE, or write one with "
            "`blockaudit manifest draft --level graph`"
        )
    if audit.config is None:
        raise RequestError(
            f"{checkpoint.source}: no config.json: there is no class to build and no epsilon to hold it to"
        )
    config = _named(audit.config, audit.reconciled, loaded.manifest)
    return Prepared(choice, loaded, audit, audit.reconciled, config)


def _named(config: dict[str, Any], reconciled: Reconciled, manifest: Manifest) -> dict[str, Any]:
    """config.json with the class that is run named: where it names none, it is the one that the manifest is of."""
    if config.get("model_type"):
        return config
    match = manifest.match
    named = reconciled.declared.class_name or match.base_class
    types = {"model_type": match.model_types[0]} if match.model_types else {}
    return {**config, **types, **({"architectures": [named]} if named else {})}


def needs_plain(checkpoint: Checkpoint, reconciled: Reconciled) -> None:
    """Raises RequestError where weights are quantised: reference and candidate compute with plain numbers."""
    found = reconciled.binding.quantised
    if found.weights:
        raise RequestError(
            f"{checkpoint.source}: {len(found.weights)} of its weights are quantised ({found.scheme}): "
            "dequantise the checkpoint first, numbers are compared plain"
        )


def layer_range(text: str | None) -> range | None:
    """`A:B` as layer numbers, B left out. Raises RequestError."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not colon or not (first or "0").isdecimal() or not (last or "0").isdecimal():
        raise RequestError(f"--layers {text!r}: expected A:B, the first layer and the one after the last (4:8)")
    return range(int(first or 0), int(last) if last else 1_000_000)
