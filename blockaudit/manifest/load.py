"""Load a block manifest: from the library by id, or from a user's `.json` or `.yaml` file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from blockaudit import resources
from blockaudit.errors import RequestError
from blockaudit.records.manifest import Manifest

# A manifest of the library has at most 15 kB.
_MAX_BYTES = 2 * 1024 * 1024


class LoadedManifest(msgspec.Struct, frozen=True):
    """A manifest, the name it goes by in reports, and the SHA-256 of its bytes."""

    manifest: Manifest
    id: str
    sha256: str


def load(id_or_path: str) -> LoadedManifest:
    """A manifest by library id (`llama`) or by file. Raises RequestError, with the line at fault."""
    if id_or_path in resources.manifest_ids() or id_or_path in resources.layout_ids():
        return library(id_or_path)
    data = read(id_or_path)
    # Users' files are validated against the schema, which knows their lines; the library's are, in tests.
    from blockaudit.manifest.check_values import values
    from blockaudit.manifest.validate import block_manifest

    manifest = block_manifest(data, id_or_path)
    # A shape that cannot be computed would be one that nothing is held to.
    broken = next(values(manifest), None)
    if broken is not None:
        raise RequestError(f"{id_or_path}: {broken}")
    return LoadedManifest(manifest, id_or_path, hashlib.sha256(data).hexdigest())


def is_path(text: str) -> bool:
    """Whether a word names a file and no id of the library."""
    return "/" in text or text.lower().endswith((".json", ".yaml", ".yml"))


def read(path: str) -> bytes:
    """The bytes of a user's manifest file, of any kind."""
    if not os.path.isfile(path):  # Path.is_file raises for a name that is too long
        if is_path(path):
            raise RequestError(f"{path}: {'not a regular file' if os.path.lexists(path) else 'no such file'}")
        known = ", ".join(resources.manifest_ids())
        raise RequestError(f"{path}: neither a manifest file nor one of the library ({known})")
    try:
        size = os.stat(path).st_size
        if size > _MAX_BYTES:
            raise RequestError(f"{path}: {size} bytes; a manifest is at most {_MAX_BYTES}")
        return Path(path).read_bytes()
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror or error}") from error


def library(name: str) -> LoadedManifest:
    """A manifest of the library."""
    data = resources.manifest_path(name).read_bytes()
    return LoadedManifest(msgspec.json.decode(data, type=Manifest), name, hashlib.sha256(data).hexdigest())
