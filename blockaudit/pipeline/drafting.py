"""`manifest draft`: the manifest that a source itself supports."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import convert
from msgspec.structs import replace

from blockaudit.checkpoint.source import open_checkpoint
from blockaudit.checkpoint.values import close_files
from blockaudit.errors import RequestError
from blockaudit.manifest.library import Choice, choose, effective_config
from blockaudit.manifest.load import LoadedManifest
from blockaudit.pipeline.audit import needs_class
from blockaudit.pipeline.execution import can_execute, executor, needs_torch
from blockaudit.reconcile.assemble import reconcile
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.manifest import Manifest

if TYPE_CHECKING:
    from blockaudit.manifest.draft import Draft


def draft(
    source: str | os.PathLike[str], *, pin: bool = False, level: str | None = None, candidate: str | None = None
) -> Draft:
    """The manifest that a source itself supports; `pin` freezes its config values.

    level: `headers` (keys, shapes and config.json), or `graph`: the manifest of the library's family is drafted, and
    only where the operators that its class runs say the same in every field. By default `graph` where torch is
    installed and the graph confirms the draft, else `headers`, with a remark. candidate: `FILE.py:NAME`, a user's own
    module that has to confirm the manifest of the library's family in place of the class that config.json names.
    Raises RequestError where there is nothing to draft from, or where a level that was asked for cannot be had.
    """
    if level not in (None, "headers", "graph"):
        raise RequestError(f"unknown --level {level!r}: expected headers or graph")
    if candidate is not None and level == "headers":
        raise RequestError("--candidate is what --level graph runs: leave --level headers out")
    level = "graph" if candidate is not None else level
    checkpoint = open_checkpoint(os.fspath(source))
    try:
        needs_class(checkpoint, "a manifest is drafted from")
        return _draft(checkpoint, pin, level, candidate)
    finally:
        close_files()


def _draft(checkpoint: Checkpoint, pin: bool, level: str | None, candidate: str | None) -> Draft:
    from blockaudit.manifest.draft import Draft
    from blockaudit.manifest.draft import draft as drafted

    choice = choose(None, checkpoint)
    loaded = choice.loaded if isinstance(choice, Choice) else None
    if level == "headers" or (level is None and not can_execute()):
        return drafted(checkpoint, loaded, pin)
    try:
        executed = loaded or (_of_its_class(checkpoint) if candidate is None else None)
        _executed_as_declared(checkpoint, executed, candidate)
    except RequestError as error:
        if level is not None:
            raise
        found = drafted(checkpoint, loaded, pin)
        return Draft(found.manifest, (*found.remarks, f"drafted from headers: {error}"))
    found = drafted(checkpoint, executed, pin)
    return Draft(replace(found.manifest, witness="graph"), found.remarks)


def _of_its_class(checkpoint: Checkpoint) -> LoadedManifest | None:
    """A manifest of a family that the library lacks, drafted from the class that config.json names.

    None where there is no config.json. Raises RequestError where the class gives no whole manifest.
    """
    config = effective_config(checkpoint.config)
    if config is None:
        return None
    needs_torch()
    from blockaudit.graph.drafting.catalog import Unfit
    from blockaudit.graph.drafting.source import of_config

    try:
        data = of_config(config)
    except Unfit as error:
        raise RequestError(f"{checkpoint.source}: its class gives no whole manifest: {error}") from error
    return LoadedManifest(convert(data, Manifest), config["model_type"], "")


def _executed_as_declared(checkpoint: Checkpoint, loaded: LoadedManifest | None, candidate: str | None = None) -> None:
    """Raises RequestError unless the executed graph confirms the manifest."""
    config = effective_config(checkpoint.config)
    if loaded is None or config is None:
        raise RequestError(
            f"{checkpoint.source}: no family of the library to read the graph against; "
            "--level headers drafts what keys, shapes and config.json show"
        )
    execute = executor(config, checkpoint.source, candidate)
    reconciled = reconcile(checkpoint, loaded.manifest, config, whole=False, execute=execute)
    executed = reconciled.executed
    wrong = [r.field for r in reconciled.rows if "executed" in r.statements and r.agrees is False]
    if executed is None or executed.failure or executed.unread or wrong:
        reason = (executed.failure or ", ".join(executed.unread)) if executed else "no graph"
        raise RequestError(
            f"{checkpoint.source}: the executed graph does not confirm the manifest of {loaded.id}: "
            f"{', '.join(wrong) or reason}"
        )
