"""The index by which a family is chosen: what each manifest of the library is recognised by."""

from __future__ import annotations

import msgspec

from blockaudit import resources
from blockaudit.manifest.library import Signature, signature
from blockaudit.manifest.load import library


def index() -> dict[str, Signature]:
    """The signature of every manifest of the library."""
    return {
        name: signature(library(name), resources.manifest_path(name).stat().st_size)
        for name in resources.manifest_ids()
    }


def encoded() -> bytes:
    """The index as it is written: the same bytes for the same manifests."""
    found = {name: msgspec.to_builtins(s) for name, s in index().items()}
    for entry in found.values():
        entry |= {k: sorted(entry[k]) for k in ("required", "optional") if k in entry}
    return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"


def write_index() -> None:
    """Write it beside the manifests."""
    path = resources.index_path()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encoded())
