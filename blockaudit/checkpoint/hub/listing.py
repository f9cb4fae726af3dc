"""What the hub's API says of a repository: the commit that a revision is, and its files with sizes and hashes."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import msgspec

from blockaudit.checkpoint.files import short
from blockaudit.checkpoint.hub.address import Address
from blockaudit.checkpoint.hub.transport import Transport
from blockaudit.errors import RequestError

_LARGEST = 64 * 1024 * 1024
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Commit = Annotated[str, msgspec.Meta(pattern="^(?:[0-9a-f]{40}|[0-9a-f]{64})$")]
_Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Lfs(msgspec.Struct):
    sha256: _Sha256


class _Sibling(msgspec.Struct):
    rfilename: str
    size: _Size | None = None
    blobId: str | None = None
    lfs: _Lfs | None = None


class _Model(msgspec.Struct):
    sha: _Commit
    siblings: list[_Sibling]


class Entry(msgspec.Struct, frozen=True):
    """One file at one commit. `identity` is its Git object's name or its SHA-256, empty where the hub gives neither."""

    size: int | None
    identity: str
    sha256: str  # empty for a file that Git itself holds


class Listing(msgspec.Struct, frozen=True):
    """A revision, resolved: its commit, and the files that there are at it."""

    commit: str
    files: dict[str, Entry]


def resolve(transport: Transport, address: Address, source: str) -> Listing:
    """Ask which commit a revision is and what it holds: one request, made in every audit. Raises RequestError."""
    path = f"/api/models/{address.repository}/revision/{quote(address.revision, safe='')}?blobs=true"
    raw = transport.document(path, source, _LARGEST)
    try:
        model = msgspec.json.decode(raw, type=_Model)
    except msgspec.ValidationError as error:
        raise RequestError(f"{source}: the hub's answer is not that of a model API: {short(str(error))}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        start = short(raw[:40].decode("utf-8", "replace"))
        raise RequestError(
            f"{source}: the hub's answer is no JSON (it begins with {start!r}): is HF_ENDPOINT right?"
        ) from error
    return Listing(model.sha, {s.rfilename: _entry(s) for s in model.siblings})


def _entry(sibling: _Sibling) -> Entry:
    sha256 = sibling.lfs.sha256 if sibling.lfs is not None else ""
    return Entry(sibling.size, sha256 or sibling.blobId or "", sha256)
