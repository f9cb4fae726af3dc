"""The source of a migration, opened: a checkpoint, or one file for each rank; its config from where the map says."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from blockaudit.checkpoint.config import read_config
from blockaudit.checkpoint.files import read_capped
from blockaudit.checkpoint.links import LEADS_OUT, leads_out
from blockaudit.checkpoint.source import open_checkpoint
from blockaudit.checkpoint.weights import read_weights
from blockaudit.errors import RequestError
from blockaudit.manifest import document
from blockaudit.records.checkpoint import Checkpoint, Fault, FileHeader, TensorHeader
from blockaudit.records.migration import MigrationMap

_RANK = "{r}"
_MAX_RANKS = 4096


def open_source(source: str, map_: MigrationMap, config: str | Path | None = None) -> Checkpoint:
    """The checkpoint that a map moves. Raises RequestError, one line, where there is none."""
    found = open_checkpoint(source) if map_.ranks is None else _ranks(source, map_.ranks, map_.config_file)
    if config is not None:
        folder, name = os.path.split(str(config))
        said, faults = _beside(folder or ".", name)
        if said is None:
            why = faults[0].message if faults else "no such file"
            raise RequestError(f"--config {config}: expected an object in JSON, or YAML where the name says so: {why}")
        return replace(found, config=said, faults=_without_config(found))
    if map_.config_file != "config.json":
        said, faults = _beside(found.folder, map_.config_file)
        if said is not None or faults:
            return replace(found, config=said, faults=(*_without_config(found), *faults))
    return found


def _beside(folder: str, name: str) -> tuple[dict[str, Any] | None, list[Fault]]:
    """A config file by its name: JSON, or YAML where the name says so."""
    if not name.lower().endswith((".yaml", ".yml")):
        return read_config(folder, name)
    path = os.path.join(folder, name)
    if not os.path.isfile(path):
        return None, []
    if leads_out(folder, name):
        return None, [Fault("config-invalid", name, f"{name} cannot be read: {LEADS_OUT}")]
    try:
        said = document.parse(read_capped(path, document.MAX_YAML), name)
    except (OSError, ValueError, RequestError) as error:
        return None, [Fault("config-invalid", name, f"{name} cannot be read: {error}")]
    if not isinstance(said, dict):
        return None, [Fault("config-invalid", name, f"{name} holds no object")]
    return cast("dict[str, Any]", said), []


def _without_config(found: Checkpoint) -> tuple[Fault, ...]:
    return tuple(f for f in found.faults if not f.rule.startswith("config-"))


def _ranks(folder: str, pattern: str, config_file: str) -> Checkpoint:
    """One file for each rank, its keys under the rank's number. Raises RequestError where one is missing.

    Where no file is called like one of a rank's, a checkpoint that the way back wrote is the only rank.
    """
    names = _names(folder, pattern) if os.path.isdir(folder) else []
    if not names:
        return _only_rank(folder, pattern, config_file)
    files: list[FileHeader] = []
    faults: list[Fault] = []
    tensors: dict[str, TensorHeader] = {}
    owner: dict[str, FileHeader] = {}
    for rank, name in enumerate(names):
        header, found = read_weights(os.path.join(folder, name), name)
        faults += found
        header = replace(
            header,
            tensors={f"{rank}/{key}": tensor for key, tensor in header.tensors.items()},
            strided=frozenset(f"{rank}/{key}" for key in header.strided),
        )
        files.append(header)
        tensors.update(header.tensors)
        owner.update(dict.fromkeys(header.tensors, header))
    config, more = read_config(folder)
    kind = "sharded-safetensors" if all(f.container == "safetensors" for f in files) else "sharded-torch"
    return Checkpoint(folder, kind, folder, tuple(files), tensors, owner, config, (*faults, *more))


def _only_rank(source: str, pattern: str, config_file: str) -> Checkpoint:
    """An ordinary checkpoint as rank 0 of one. Raises RequestError where there is none."""
    why = f"the map reads {pattern}, one file for each rank, or one checkpoint that holds everything"
    try:
        found = open_checkpoint(source)
    except RequestError as error:
        raise RequestError(f"{error} ({why})") from error
    if config_file == "config.json" and found.config is None and not found.tensors:
        raise RequestError(f"{source}: {why}")
    return replace(
        found,
        tensors={f"0/{key}": tensor for key, tensor in found.tensors.items()},
        owner={f"0/{key}": file for key, file in found.owner.items()},
        files=tuple(_of_rank_0(file) for file in found.files),
    )


def _of_rank_0(file: FileHeader) -> FileHeader:
    tensors = {f"0/{key}": tensor for key, tensor in file.tensors.items()}
    return replace(file, tensors=tensors, strided=frozenset(f"0/{key}" for key in file.strided))


def _names(folder: str, pattern: str) -> list[str]:
    """The rank files in order, from rank 0 without a gap. Raises RequestError."""
    head, _, tail = pattern.partition(_RANK)
    above, slash, start = head.rpartition("/")
    end, slash_below, below = tail.partition("/")
    text = re.compile(re.escape(start) + r"(\d{1,5})" + re.escape(end), re.ASCII)
    ranks: list[tuple[int, str]] = []
    for name in _listed(os.path.join(folder, above)):
        matched = text.fullmatch(name)
        path = above + slash + name + slash_below + below
        if matched is not None and os.path.exists(os.path.join(folder, path)):
            ranks.append((int(matched[1]), path))
    ranks.sort()
    names = [path for _, path in ranks]
    if [rank for rank, _ in ranks] != list(range(len(ranks))) or len(ranks) > _MAX_RANKS:
        have = ", ".join(names[:8])
        raise RequestError(f"{folder}: the map reads {pattern} from rank 0 on without a gap, and there are {have}")
    _check_links(folder, names)
    return names


def _listed(folder: str) -> list[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []


def _check_links(folder: str, names: list[str]) -> None:
    """Refuse a file that a link, of its own or of a folder above it, puts outside the source. Raises RequestError."""
    for name in names:
        parts = name.split("/")
        if any(leads_out(folder, "/".join(parts[:n])) for n in range(1, len(parts) + 1)):
            raise RequestError(f"{folder}: {name} cannot be read: {LEADS_OUT}")
