"""The shard index, `model.safetensors.index.json`: which key lies in which file, held to what the files say."""

from __future__ import annotations

import os
import posixpath
import re
from collections import defaultdict
from typing import Any, cast

import msgspec

from blockaudit.checkpoint import storage
from blockaudit.checkpoint.files import gc_paused, read_capped, reason, short
from blockaudit.checkpoint.jsontext import MANY, BadJsonError, Pairs, check_size, parse_pairs
from blockaudit.checkpoint.links import leads_out
from blockaudit.records.checkpoint import Fault

MAX_INDEX = 256 * 1024 * 1024
INDEX_SUFFIX = ".index.json"


class Index(msgspec.Struct, frozen=True):
    """A shard index as written: key -> shard name, shards in the order of their names, and its own total in bytes."""

    weight_map: dict[str, str]
    shards: tuple[str, ...]
    total_size: int | None
    keys_of: dict[str, list[str]] = {}


class _Document(msgspec.Struct, gc=False):
    weight_map: dict[str, str]
    metadata: msgspec.Raw = msgspec.Raw()


_DECODER = msgspec.json.Decoder(_Document)


def _total(metadata: Any) -> int | None:
    """metadata.total_size; some writers give it as a float."""
    if not isinstance(metadata, dict):
        return None
    total: Any = cast("dict[str, Any]", metadata).get("total_size")
    if type(total) is int:
        return total
    return int(total) if isinstance(total, float) and total.is_integer() else None


def _fast(raw: bytes) -> tuple[dict[str, str], int | None] | None:
    """The index, where one count of quotes proves that no key is given twice."""
    try:
        document = _DECODER.decode(raw)
        metadata = bytes(document.metadata)
        total = _total(msgspec.json.decode(metadata)) if metadata else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    quotes = 4 * len(document.weight_map) + metadata.count(b'"') + (4 if metadata else 2)
    return (document.weight_map, total) if raw.count(b'"') == quotes else None


def _exact(raw: bytes, name: str) -> tuple[dict[str, str], int | None, list[Fault]]:
    document = parse_pairs(raw)
    if not isinstance(document, Pairs):
        raise BadJsonError("it is not an object")
    fields = dict(document)
    written = fields.get("weight_map")
    if not isinstance(written, Pairs):
        raise BadJsonError("it has no object weight_map")
    if not all(isinstance(shard, str) for _, shard in written):
        raise BadJsonError("weight_map maps a key to something that is not a file name")
    weight_map = cast("dict[str, str]", dict(written))
    metadata = fields.get("metadata")
    total = _total(dict(metadata)) if isinstance(metadata, Pairs) else None
    if len(weight_map) == len(written):
        return weight_map, total, []
    seen: set[str] = set()
    twice = tuple(dict.fromkeys(k for k, _ in written if k in seen or seen.add(k)))
    fault = Fault(
        "duplicate-key", name, f"the index lists {short(twice[0])} more than once; the last entry counts", twice
    )
    return weight_map, total, [fault]


def parse_index(raw: bytes, name: str) -> tuple[Index, list[Fault]]:
    """Parse an index reported as `name`. Raises BadJsonError where it is no index."""
    check_size(raw, MANY)
    with gc_paused():
        found = _fast(raw)
        weight_map, total, faults = (*found, []) if found else _exact(raw, name)
        keys_of: defaultdict[str, list[str]] = defaultdict(list)
        for key, shard in weight_map.items():
            keys_of[shard].append(key)
    return Index(weight_map, tuple(sorted(keys_of)), total, dict(keys_of)), faults


def read_index(path: str, name: str) -> tuple[Index | None, list[Fault]]:
    """Read the index at `path`, reported as `name`; None and a fault where it cannot be read."""
    try:
        raw = read_capped(path, MAX_INDEX)
    except OSError as error:
        return None, [Fault("unreadable-file", name, f"cannot be read: {reason(error)}")]
    except ValueError as error:
        return None, [Fault("unreadable-file", name, f"too large for a shard index: {error}")]
    if raw.startswith(b"version https://git-lfs"):
        from blockaudit.checkpoint.files import lfs_size
        from blockaudit.checkpoint.header import lfs_fault

        return None, [lfs_fault(name, lfs_size(raw) or -1, len(raw))]
    try:
        return parse_index(raw, name)
    except BadJsonError as error:
        return None, [Fault("unreadable-file", name, f"not a shard index: {error}")]


def refused_name(folder: str, shard: str) -> str:
    """Why a shard name is not followed, or an empty string.

    A link to a blob of the same Hugging Face cache is followed, any other that leads out is not.
    """
    if not shard or "\0" in shard or posixpath.normpath(shard) != shard or shard in (".", ".."):
        return "is not a plain file name"
    if posixpath.isabs(shard) or shard.startswith("../") or "\\" in shard or re.match(r"[A-Za-z]:", shard):
        return "leads out of the folder"
    try:
        os.fsencode(shard)
        if storage.is_remote(folder):
            return ""  # a hub has no links
        if leads_out(folder, shard):
            return "is a link that leads out of the folder"
        home = os.path.realpath(folder)
        inside = os.path.realpath(os.path.join(folder, os.path.dirname(shard)))
    except (ValueError, OSError):
        return "is not a possible file name"
    if inside != home and not inside.startswith(home.rstrip(os.sep) + os.sep):
        return "leads out of the folder"
    return ""


def family(index_name: str) -> re.Pattern[str]:
    """Names of the shards of an index: `model-00001-of-00002.safetensors` for model.safetensors.index.json."""
    stem, suffix = os.path.splitext(os.path.basename(index_name).removesuffix(INDEX_SUFFIX))
    return re.compile(rf"{re.escape(stem)}[-_.]\d+-of-\d+{re.escape(suffix)}", re.ASCII)
