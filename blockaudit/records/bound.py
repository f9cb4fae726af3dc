"""A manifest bound to one config.json: every value resolved, every tensor expected, with where each came from."""

from __future__ import annotations

from typing import Any

import msgspec

from blockaudit.records.checkpoint import Fault
from blockaudit.records.manifest import Manifest


class Resolved(msgspec.Struct, frozen=True):
    """A value and the bytes it was read from.

    `known` is false where the value depends on a config key that cannot be read. `keys` are the config.json keys it
    depends on, `implied` those of them that are absent, so that the class default stands in. `pinned` marks a value
    that the manifest froze: it was not read from config.json. `headers` marks one read off tensor headers.
    """

    value: Any
    known: bool = True
    keys: tuple[str, ...] = ()
    implied: tuple[str, ...] = ()
    pinned: bool = False
    headers: bool = False

    @property
    def bytes_read(self) -> str:
        if self.headers and not self.keys:
            return "tensor headers"
        return "manifest" if self.pinned or not self.keys else f"config.json: {', '.join(self.keys)}"

    @property
    def evidence(self) -> str:
        if self.pinned:
            return f"manifest, pinned from config.json: {', '.join(self.keys)}" if self.keys else "manifest, pinned"
        if not self.keys:
            return "tensor headers" if self.headers else "manifest"
        if not self.known:
            return f"{self.bytes_read} (cannot be read)"
        absent = f" (absent: class default implied for {', '.join(self.implied)})" if self.implied else ""
        return self.bytes_read + absent


class ExpectedTensor(msgspec.Struct, frozen=True):
    """One key template with its axes expanded over `layers` (axis `l`) and `counts` (every other axis).

    shape holds None where a dimension cannot be known without config.json. `owner` is the contract subject it belongs
    to (`decoder.self_attention.norm_in`), `what` its place there: norm | bias | branch | embedding | part | buffer.
    """

    template: str
    shape: tuple[int | None, ...]
    symbols: tuple[str, ...]
    owner: str
    role: str
    what: str
    stack: str | None = None
    layers: tuple[int, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    optional: bool = False
    derived: bool = False
    tied_to: str | None = None
    tied: Resolved | None = None
    layout: str = "out_in"
    ignored: bool = False
    unsized: bool = False  # the manifest claims no shape


class StackSpan(msgspec.Struct, frozen=True):
    """The layer numbers of one stack: `first`, how many are stored under how many names, how many are run."""

    name: str
    first: int
    run: int | None
    stored: int | None
    source: str
    ignored: bool = False
    kinds: tuple[tuple[str, tuple[int, ...]], ...] = ()  # layer kind -> its layers, where layers differ


class BoundManifest(msgspec.Struct, frozen=True):
    """One view of a manifest under one config: `declared` (pins hold) or `stored` (what config.json says now)."""

    manifest: Manifest
    class_name: str | None
    base_prefix: str
    dims: dict[str, Resolved]
    fields: dict[str, Resolved]
    spans: tuple[StackSpan, ...]
    expected: tuple[ExpectedTensor, ...]
    # Tensors of parts that the manifest knows and this class does not have.
    foreign: tuple[ExpectedTensor, ...]
    problems: tuple[Fault, ...]
    consumed: frozenset[str]
    # What branches, embedding and head compute: no rows of the contract, for no other witness speaks of it.
    functions: dict[str, Resolved] = {}
    # Templates that the checkpoint's container has no name for, so that nothing can be said of them.
    unspelt: tuple[str, ...] = ()

    @property
    def pinned(self) -> bool:
        """Whether the manifest froze any value, so that config.json is a witness of its own."""
        return any(v.pinned for v in (*self.fields.values(), *self.dims.values(), *self.functions.values()))
