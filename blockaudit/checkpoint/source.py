"""SOURCE, opened: from the word that the user typed to a `Checkpoint`, with every fault met on the way."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from blockaudit.checkpoint import containers, foreign, shards, storage
from blockaudit.checkpoint.adapter.read import only, read_adapter
from blockaudit.checkpoint.bundle import Bundle, Speaks, read_bundle
from blockaudit.checkpoint.config import read_config
from blockaudit.checkpoint.files import REMOTE, gc_paused
from blockaudit.checkpoint.folder import choose, is_sharded_state, is_sidecar, names_in
from blockaudit.checkpoint.header import unread
from blockaudit.checkpoint.index import INDEX_SUFFIX, read_index, refused_name
from blockaudit.checkpoint.links import LEADS_OUT, leads_out
from blockaudit.checkpoint.recognise import adapter_only, sharded_state_fault, training_state
from blockaudit.checkpoint.weights import (
    PICKLE_SUFFIXES,
    WEIGHT_SUFFIXES,
    looks_like_weights,
    read_weights,
)
from blockaudit.errors import RequestError
from blockaudit.records.checkpoint import Checkpoint, Fault, FileHeader, TensorHeader

_Files = tuple[list[FileHeader], list[Fault]]


def _mode(source: str) -> int:
    try:
        return os.stat(source).st_mode
    except FileNotFoundError as error:
        raise RequestError(f"{source}: no such file or folder") from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RequestError(f"{source}: cannot be opened: {why.lower()}") from error


def _merge(
    files: Sequence[FileHeader], placed: dict[str, str]
) -> tuple[dict[str, TensorHeader], dict[str, FileHeader]]:
    """All tensors and who holds them. Where two files hold one key, the index decides, else the first file."""
    tensors: dict[str, TensorHeader] = {}
    owner: dict[str, FileHeader] = {}
    for file in files:
        if tensors.keys().isdisjoint(file.tensors):
            tensors.update(file.tensors)
            owner.update(dict.fromkeys(file.tensors, file))
            continue
        for key, tensor in file.tensors.items():
            if key not in tensors or placed.get(key) == file.name:
                tensors[key], owner[key] = tensor, file
    return tensors, owner


def _open_index(folder: str, name: str) -> tuple[_Files, dict[str, str]]:
    index, faults = read_index(os.path.join(folder, name), name)
    if index is None:
        return ([unread(os.path.join(folder, name), name, 0, _container(name))], faults), {}
    refused = {shard: why for shard in index.shards if (why := refused_name(folder, shard))}
    lost = {
        shard: None
        for shard in index.shards
        if shard not in refused and not storage.exists(os.path.join(folder, shard))
    }

    def read_shard(shard: str) -> tuple[FileHeader, list[Fault]]:
        path = os.path.join(folder, shard)
        if shard in refused or shard in lost:
            # Its keys are unknown, not absent: the record says so.
            return unread(path, shard, 0, _container(name)), []
        return read_weights(path, shard)

    files: list[FileHeader] = []
    for header, found in storage.each(folder, read_shard, index.shards):
        files.append(header)
        faults.extend(found)
    read = [file for file in files if file.readable]
    faults += shards.missing(index, name, list(lost))
    faults += shards.refused(index, name, refused)
    faults += shards.unlisted(index, name, names_in(folder or ".", name))
    misplaced = shards.misplaced(index, name, read)
    faults += misplaced + shards.duplicates(read)
    if not misplaced:  # else the two do not speak of the same tensors
        faults += shards.total_size(index, name, files)
    return (files, faults), index.weight_map


def _container(name: str) -> str:
    return "safetensors" if ".safetensors" in name else "torch-zip"


def _format(files: Sequence[FileHeader], *, sharded: bool) -> str:
    kind = "safetensors" if all(f.container == "safetensors" for f in files) else "torch"
    return f"sharded-{kind}" if sharded else kind


def _beside(folder: str) -> tuple[dict[str, Any] | None, dict[str, Any] | None, list[Fault]]:
    """config.json and adapter_config.json."""
    config, faults = read_config(folder)
    adapter, more = read_config(folder, "adapter_config.json")
    return config, adapter, faults + more


def _assemble(source: str, folder: str, name: str, sidecars: tuple[str, ...]) -> Checkpoint:
    """Read the weights that start at `name` in `folder`, and what lies beside them."""
    sharded = name.endswith(".json")
    if sharded:
        (files, faults), placed = _open_index(folder, name)
    else:
        header, faults = read_weights(os.path.join(folder, name), name)
        files, placed = [header], {}
    tensors, owner = _merge(files, placed)
    config, adapter, more = _beside(folder)
    faults += more
    state = training_state(tensors, name)
    faults += [state] if state is not None else []
    if adapter_only(tensors, name, declared=adapter is not None):
        read, found = read_adapter(tensors, adapter, name)
        faults += [*found, only(read, name, len(tensors))]
    return Checkpoint(
        source=source,
        format=_format(files, sharded=sharded),
        folder=folder or ".",
        files=tuple(files),
        tensors=tensors,
        owner=owner,
        config=config,
        faults=tuple(faults),
        sidecars=sidecars,
        adapter=adapter,
    )


def _open_sharded_state(source: str, folder: str, names: tuple[str, ...], sidecars: tuple[str, ...]) -> Checkpoint:
    """A folder or file of training state: recognised by name and not opened."""
    files = tuple(unread(os.path.join(folder, name), name, 0, "torch-zip") for name in names)
    config, adapter, faults = _beside(folder)
    found = (sharded_state_fault(names), *faults)
    return Checkpoint(source, "sharded-torch", folder or ".", files, {}, {}, config, found, sidecars, adapter)


def _linked_out(source: str, folder: str, name: str, sidecars: tuple[str, ...]) -> Checkpoint:
    """A folder whose weights are a link to what is no part of it: the link is not followed."""
    files = (unread(os.path.join(folder, name), name, 0, _container(name)),)
    config, adapter, faults = _beside(folder)
    found = (Fault("unreadable-file", name, f"cannot be read: {LEADS_OUT}"), *faults)
    return Checkpoint(
        source, _format(files, sharded=False), folder or ".", files, {}, {}, config, found, sidecars, adapter
    )


def _open_folder(source: str, folder: str, speaks: Speaks) -> Checkpoint:
    """A folder that is a checkpoint, or the one model of a folder of several modules."""
    bundle = read_bundle(folder)
    if bundle is None:
        return _open_plain(source, folder)
    return _open_part(source, folder, bundle.model(source, speaks), bundle)


def _open_part(source: str, folder: str, part: str, bundle: Bundle) -> Checkpoint:
    """One model of a folder of several modules, with a note of the others."""
    found = _open_plain(f"{source.rstrip('/')}/{part}" if part else source, os.path.join(folder, part).rstrip("/"))
    return replace(found, faults=(*found.faults, *bundle.beside(part)))


def _open_plain(source: str, folder: str) -> Checkpoint:
    choice = choose(folder, source)
    start = choice.name or (containers.DISTRIBUTED if choice.backend else "")
    if start and leads_out(folder, start):
        return _linked_out(source, folder, start, choice.sidecars)
    if choice.backend:
        return containers.open_distributed(source, folder, choice.backend, choice.sidecars)
    if choice.name.lower().endswith(".gguf"):
        return containers.open_gguf(source, folder, choice.name, choice.sidecars)
    if choice.sharded:
        return _open_sharded_state(source, folder, choice.sharded, choice.sidecars)
    return _assemble(source, folder, choice.name, choice.sidecars)


def _open_remote(source: str, whole: bool, speaks: Speaks) -> Checkpoint:
    if whole:
        name = source.removeprefix(REMOTE).partition("@")[0]
        raise RequestError(
            f"{source}: this reads every weight, and of a hub only headers and norm vectors are read: "
            f"download it first (hf download {name} --local-dir DIR) and name the folder"
        )
    try:
        return _open_folder(source, storage.connect(source), speaks)
    except BaseException:
        storage.close()
        raise


def _check_json(source: str, name: str) -> None:
    """A .json that is no index is not a corrupt checkpoint, it is something else."""
    if name.endswith(INDEX_SUFFIX):
        return
    index, _ = read_index(source, name)
    if index is None:
        raise RequestError(f"{source}: not a checkpoint: a .json SOURCE is a shard index with a weight_map")


def _open_file(source: str) -> Checkpoint:
    folder, name = os.path.split(source)
    lower = name.lower()
    if lower.endswith(".json"):
        _check_json(source, name)
        return _assemble(source, folder, name, ())
    if name == containers.DISTRIBUTED:
        return _open_plain(source, folder or ".")
    if is_sharded_state(name):
        return _open_sharded_state(source, folder, (name,), ())
    if is_sidecar(name) and lower.endswith(PICKLE_SUFFIXES):
        raise RequestError(f"{source}: not a checkpoint: {name} is training state, which is not opened")
    known = lower.endswith(WEIGHT_SUFFIXES) or foreign.by_name(name) is not None
    if not known and containers.is_gguf(source):
        return containers.open_gguf(source, folder, name, ())
    if not known and not looks_like_weights(source):
        raise RequestError(
            f"{source}: not a checkpoint: expected a folder, .safetensors, .bin, .pt, .pth, .gguf or an index .json"
        )
    return _assemble(source, folder, name, ())


def models_of(source: str, speaks: Speaks) -> tuple[str, ...]:
    """The sub-folders of a folder of several modules (diffusers) that hold a text model.

    None where it is no such folder, nor of a hub.
    """
    bundle = read_bundle(source) if os.path.isdir(source) else None
    return bundle.models(speaks) if bundle is not None else ()


def open_part(source: str, part: str, *, whole: bool = False) -> Checkpoint:
    """Open one of `models_of(source)`. Raises RequestError."""
    bundle = read_bundle(source)
    if bundle is None:
        raise RequestError(f"{source}: not a folder of several modules")
    with gc_paused():
        checkpoint = _open_part(source, source, part, bundle)
    if whole:
        containers.check_whole(checkpoint)
    return checkpoint


def open_checkpoint(source: str, *, whole: bool = False, speaks: Speaks = lambda _: True) -> Checkpoint:
    """Open a folder, a weight file, a shard index or a repository on a hub, and read every header.

    No weight is read and nothing is executed. `whole` says that the caller is going to read every weight, for which a
    hub is the wrong place. `speaks` tells the models of a folder of several modules that a manifest speaks of. What is
    wrong with the files is in `faults`. Raises RequestError, one line, where there is nothing to audit.
    `values.close_files` ends the connection to a hub.
    """
    if not source:
        raise RequestError("SOURCE is empty: expected a folder, a weight file or a shard index")
    if storage.is_remote(source):
        with gc_paused():
            return _open_remote(source, whole, speaks)
    mode = _mode(source)
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise RequestError(f"{source}: not a checkpoint: it is neither a folder nor a regular file")
    with gc_paused():
        checkpoint = _open_folder(source, source, speaks) if stat.S_ISDIR(mode) else _open_file(source)
    if whole:
        containers.check_whole(checkpoint)
    return checkpoint
