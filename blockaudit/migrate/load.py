"""Load a migration map: from the library by id, or from a user's `.json` or `.yaml` file."""

from __future__ import annotations

import hashlib
import os
import re

import msgspec

from blockaudit import resources
from blockaudit.errors import RequestError
from blockaudit.manifest.load import is_path, read
from blockaudit.migrate.convert.carry import goes_along
from blockaudit.records.migration import MigrationMap

SCHEMA = "blockaudit/map/1"
# A plain file name, which is written in TARGET on the way back.
_CONFIG_FILE = re.compile(r"\w[\w.+-]*\.(?:json|yaml|yml)", re.ASCII)
_OURS = ("conversion-report.json", "rollback.json")


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
            raise RequestError(
                f"{id_or_path}: {'not a regular file' if os.path.lexists(id_or_path) else 'no such file'}"
            )
        known = ", ".join(resources.map_ids())
        raise RequestError(f"{id_or_path}: neither a map file nor one of the library ({known})")
    data = read(id_or_path)
    # Users' files are validated against the schema, which knows their lines; the library's are, in tests.
    from blockaudit.manifest.validate import document_of

    try:
        found = document_of("migration_map", MigrationMap, data, id_or_path)
    except RequestError as error:
        raise InvalidMap(str(error)) from error
    try:
        msgspec.json.encode(found)
    except ValueError as error:
        # Half of a surrogate pair: JSON can spell it, and it is no character.
        raise InvalidMap(f"{id_or_path}: it holds what no file can be written with: {error}") from error
    _check_places(found, id_or_path)
    return LoadedMap(found, id_or_path, hashlib.sha256(data).hexdigest())


def _check_places(map_: MigrationMap, path: str) -> None:
    """Refuse names of files that are read or written elsewhere than in the folder they belong to. Raises InvalidMap."""
    name = map_.config_file
    if not _CONFIG_FILE.fullmatch(name) or name in _OURS or name.endswith(".index.json") or goes_along(name):
        raise InvalidMap(
            f"{path}: config_file: expected the name of a .json or .yaml file beside the weights that no other file "
            f"has (params.json), found {name!r}"
        )
    if map_.ranks is not None and {"", ".", ".."} & {*map_.ranks.split("/")}:
        raise InvalidMap(f"{path}: ranks: expected a path below the source, found {map_.ranks!r}")


def library(name: str) -> LoadedMap:
    """A map of the library."""
    data = resources.map_path(name).read_bytes()
    return LoadedMap(msgspec.json.decode(data, type=MigrationMap), name, hashlib.sha256(data).hexdigest())
