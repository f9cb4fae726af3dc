"""From weights that are written to TARGET: what stands beside them, the final names, and the rename."""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import Any

import msgspec
from msgspec.structs import replace

from blockaudit import __version__
from blockaudit.checkpoint.hashing import sha256_of
from blockaudit.checkpoint.ranges import OpenFiles
from blockaudit.errors import RequestError
from blockaudit.migrate.convert import document
from blockaudit.migrate.convert.layout import INDEX, index_of
from blockaudit.migrate.convert.previous import rollback
from blockaudit.migrate.convert.publish import publish, sync
from blockaudit.migrate.convert.request import Conform, Running
from blockaudit.migrate.convert.run import Hashes
from blockaudit.migrate.convert.workplace import PART
from blockaudit.records.conversion import Conversion, Ends, FileRow


def described(running: Running, hashes: Hashes) -> Conversion:
    """Write what stands beside the weights, the config as `*.part`, and say all that was done. Raises RequestError."""
    request = running.request
    plan, checkpoint = request.plan, request.checkpoint
    written = (_config(running), _rollback(running, hashes), *_index(running))
    return Conversion(
        version=__version__,
        plan_sha256=running.plan_sha256,
        map=request.map,
        source=_source(running, hashes),
        target=_target(running, hashes),
        carried=tuple(_carry(running, name) for name in running.along),
        written=tuple(sorted(written, key=lambda row: row.name)),
        tensors=document.tensor_rows(plan, running.files, hashes.tensors),
        round_trip=document.round_trip_rows(plan),
        aliases=plan.aliases,
        verified=plan.verify,
        dropped=plan.dropped,
        config=document.config_rows(checkpoint.config, plan.config),
    )


def published(running: Running, conversion: Conversion) -> Conversion:
    """Give everything its final name, and the folder TARGET's. Raises RequestError where the source has changed."""
    request, place = running.request, running.place
    if request.conform is not None:
        conversion = replace(conversion, conform=_conformed(running, request.conform))
    _write(running, document.REPORT, request.document(conversion))
    if request.durable:
        for name in os.listdir(place.whole):
            sync(place.path(name))
    running.source.files.check()
    _named(running)
    try:
        publish(place.whole, request.target, request.durable)
    except FileExistsError as error:
        raise RequestError(f"{request.target}: it came to be while this ran, and is left as it is") from error
    return conversion


def _conformed(running: Running, conform: Conform) -> dict[str, Any]:
    """Run the check on the folder as a model, which it is for that long."""
    _named(running)
    try:
        return conform(running.place.whole)
    finally:
        _unnamed(running)


def _last_names(running: Running) -> tuple[str, ...]:
    """Files that make a model of the folder, the config last: until then nothing in it is one."""
    return (*(file.name for file in running.files), running.request.plan.config_file)


def _named(running: Running) -> None:
    for name in _last_names(running):
        os.rename(running.place.path(name + PART), running.place.path(name))


def _unnamed(running: Running) -> None:
    for name in reversed(_last_names(running)):
        os.rename(running.place.path(name), running.place.path(name + PART))


def _source(running: Running, hashes: Hashes) -> Ends:
    checkpoint, (manifest, sha256) = running.request.checkpoint, running.request.manifests[0]
    rows = tuple(FileRow(file.name, file.size, hashes.read.get(file.path, "")) for file in checkpoint.files)
    size = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    return Ends(manifest, sha256, rows, len(checkpoint.tensors), size, hashes.source)


def _target(running: Running, hashes: Hashes) -> Ends:
    manifest, sha256 = running.request.manifests[1]
    rows = tuple(FileRow(file.name, file.size, hashes.written.get(file.name, "")) for file in running.files)
    placed = [p for file in running.files for work in file.works for p in work.outputs]
    return Ends(manifest, sha256, rows, len(placed), sum(p.stop - p.start for p in placed), hashes.target)


# -- files beside the weights -----------------------------------------------------------------------------------------


def _carry(running: Running, name: str) -> FileRow:
    """Copy a file of the source, and hold the copy to it."""
    path, copy = os.path.join(running.request.checkpoint.folder, name), running.place.path(name)
    shutil.copyfile(path, copy)
    files = OpenFiles((copy,))
    try:
        sha256 = sha256_of(files, copy)
    finally:
        files.close()
    if sha256 != sha256_of(running.source.files, path):
        raise RequestError(f"{path}: it changed while it was read: run again once nothing writes to it")
    return FileRow(name, os.path.getsize(copy), sha256)


def _config(running: Running) -> FileRow:
    plan = running.request.plan
    data = msgspec.json.format(msgspec.json.encode(plan.config, order="sorted"), indent=2) + b"\n"
    row = _write(running, plan.config_file + PART, data)
    return replace(row, name=plan.config_file)


def _index(running: Running) -> tuple[FileRow, ...]:
    index = index_of(running.files)
    return () if index is None else (_write(running, INDEX, index),)


def _rollback(running: Running, hashes: Hashes) -> FileRow:
    request = running.request
    if request.previous is not None:
        found = rollback(request.previous, "config.json", {}, "", request.hashing)
    else:
        found = rollback(request.checkpoint, request.source_config, hashes.read, hashes.source, request.hashing)
    return _write(running, document.ROLLBACK, document.written(found))


def _write(running: Running, name: str, data: bytes) -> FileRow:
    with open(running.place.path(name), "wb") as file:
        file.write(data)
    return FileRow(name, len(data), hashlib.sha256(data).hexdigest())
