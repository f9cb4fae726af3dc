"""Load a migration map: from the library by id, or from a user's `.json` or `.yaml` file."""

from __future__ import annotations

import hashlib
import os

import msgspec

from blockaudit import resources
from blockaudit.errors import RequestError
from blockaudit.manifest.load import is_path, read
from blockaudit.records.migration import MigrationMap

SCHEMA = "blockaudit/map/1"


class InvalidMap(RequestError):
    """The map can be read and is none: its schema, a template or an operation is at fault. One line, with the place."""


class LoadedMap(msgspec.Struct, frozen=True):
    """A map, the name that it goes by in reports, and the SHA-256 of its bytes."""

    map: MigrationMap
    id: str
    sha256: str
    reversed: bool = False


def load(id_or_path: str) -> LoadedMap:
    """A map by library id (`meta_llama`) or by file. Raises RequestError, InvalidMap where the file is no map."""
    if id_or_path in resources.map_ids():
        return library(id_or_path)
    if not os.path.isfile(id_or_path):
        if is_path(id_or_path):
            raise RequestError(f"{id_or_path}: no such file")
        known = ", ".join(resources.map_ids())
        raise RequestError(f"{id_or_path}: neither a map file nor one of the library ({known})")
    data = read(id_or_path)
    # Users' files are validated against the schema, which knows their lines; the library's are, in tests.
    from blockaudit.manifest.validate import document_of

    try:
        found = document_of("migration_map", MigrationMap, data, id_or_path)
    except RequestError as error:
        raise InvalidMap(str(error)) from error
    return LoadedMap(found, id_or_path, hashlib.sha256(data).hexdigest())


def library(name: str) -> LoadedMap:
    """A map of the library."""
    data = resources.map_path(name).read_bytes()
    return LoadedMap(msgspec.json.decode(data, type=MigrationMap), name, hashlib.sha256(data).hexdigest())
