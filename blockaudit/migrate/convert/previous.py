"""`rollback.json`: the complete artifact that a rollback puts back, and what of it no folder holds.

A rollback restores the previous complete artifact: graph, checkpoint, tokenizer and configuration, runtime backend,
calibration buffers, and scheduler state (specification, "Canary and rollback").
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from blockaudit import __version__
from blockaudit.checkpoint.distributed import MEGATRON_CORE
from blockaudit.checkpoint.hashing import semantic_hash, sha256_of_each
from blockaudit.checkpoint.links import leads_out
from blockaudit.checkpoint.ranges import OpenFiles
from blockaudit.migrate.convert.carry import carried
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.conversion import FileRow, PreviousPart, Rollback

_ABSENT = {
    "runtime_backend": "a checkpoint does not say what ran it: name the runtime and its version in the release",
    "calibration_buffers": "no buffers of a calibration lie beside the weights",
    "scheduler_state": "no state of an optimizer or a schedule lies beside the weights: no training is resumed from it",
}
_INDEX = ".index.json"
# Beside a distributed checkpoint of Megatron-core 0.16 (dist_checkpointing/core.py, strategies/common.py).
_MEGATRON = ("metadata.json", "common.pt")


def rollback(checkpoint: Checkpoint, config: str, known: Mapping[str, str], semantic: str, hashing: bool) -> Rollback:
    """The pointer to `checkpoint`. config: the name of its config file; known: SHA-256 by path that are had already."""
    parts = {name: _present(checkpoint, names) for name, names in _parts(checkpoint, config).items()}
    names = sorted({name for held in parts.values() for name in held})
    paths = {name: os.path.join(checkpoint.folder, name) for name in names}
    files = OpenFiles(tuple(paths.values()))
    try:
        hashes = _hashes(files, known) if hashing else {}
        rows = tuple(FileRow(n, files.identities[p][2], hashes.get(p, "")) for n, p in paths.items())
    finally:
        files.close()
    return Rollback(
        version=__version__,
        name=os.path.basename(os.path.realpath(checkpoint.source)),
        files=rows,
        semantic=semantic or (semantic_hash(checkpoint) if hashing else ""),
        parts=tuple(_part(name, held) for name, held in parts.items()),
    )


def _parts(checkpoint: Checkpoint, config: str) -> dict[str, list[str]]:
    """The files of each part, were they there."""
    weights = [file.name for file in checkpoint.files]
    listed = os.listdir(checkpoint.folder)
    indexes = [name for name in listed if name.endswith(_INDEX)] if len(weights) > 1 else []
    code = [name for name in listed if name.endswith(".py")]
    return {
        "graph": ["config.json", config, *code],
        "checkpoint": [*weights, *indexes, *(_MEGATRON if checkpoint.format == MEGATRON_CORE else ())],
        "tokenizer_and_configuration": ["config.json", config, *carried(checkpoint)],
        "runtime_backend": [],
        "calibration_buffers": [],
        "scheduler_state": list(checkpoint.sidecars),
    }


def _present(checkpoint: Checkpoint, names: list[str]) -> tuple[str, ...]:
    folder = checkpoint.folder
    return tuple(
        n for n in dict.fromkeys(names) if os.path.isfile(os.path.join(folder, n)) and not leads_out(folder, n)
    )


def _part(name: str, files: tuple[str, ...]) -> PreviousPart:
    why = "" if files else _ABSENT.get(name, "no file of it lies in the folder")
    return PreviousPart(name, bool(files), files, why)


def _hashes(files: OpenFiles, known: Mapping[str, str]) -> dict[str, str]:
    missing = [path for path in files.identities if path not in known]
    return {**known, **sha256_of_each(files, missing)}
