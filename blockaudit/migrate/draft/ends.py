"""The two ends of a draft: each manifest bound to its config, both under the target's names, and the source's files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from blockaudit.manifest import grammar
from blockaudit.manifest.view import owner_of
from blockaudit.migrate.draft.pieces import Piece
from blockaudit.records.bound import BoundManifest, Resolved
from blockaudit.records.manifest import Bound, Branch
from blockaudit.records.migration import TensorType


class Ends(msgspec.Struct, frozen=True):
    """`types` are the source's tensors as they are stored; of rank files under `RANK/KEY`, of `ranks` ranks."""

    source: BoundManifest
    target: BoundManifest
    types: Mapping[str, TensorType]
    ranks: int = 0

    @property
    def dims(self) -> dict[str, Any]:
        """Dimension symbols as operations work them out: the target's first, then the source's."""
        sides = (self.source.dims, self.target.dims)
        return {n: d.value for dims in sides for n, d in dims.items() if d.known and d.value is not None}

    def said(self, field: str) -> tuple[Any, Any]:
        """What source and target say of a field or function; None where one says nothing."""
        return _value(self.source, field), _value(self.target, field)

    def stored(self, piece: Piece) -> tuple[str, ...]:
        """The first key of a piece that the source stores; of rank files, that key on every rank."""
        key = first_key(piece)
        keys = (key,) if not self.ranks else tuple(f"{rank}/{key}" for rank in range(self.ranks))
        return keys if all(k in self.types for k in keys) else ()

    def spelt(self, owner: str, name: str, value: int) -> int | str:
        """A count of heads in the target's words, where they come to it: `n_kv`; else the number."""
        branch = _branch(self.target, owner)
        attention = None if branch is None else branch.attention
        declared = None if attention is None else getattr(attention, name)
        if name == "kv_heads" and declared is None and attention is not None:
            declared = attention.heads
        text = declared.expr if isinstance(declared, Bound) else None
        return text if text is not None and _comes_to(text, self.dims, value) else value


def _comes_to(text: str, dims: Mapping[str, Any], value: int) -> bool:
    try:
        return all(n in dims for n in grammar.symbols(text)) and grammar.evaluate(text, dims) == value
    except grammar.ExpressionError:
        return False


def first_key(piece: Piece) -> str:
    """The key of a piece in its first layer, at place 0 of every other axis."""
    text = piece.expected.template if not piece.layers else piece.at(piece.layers[0])
    for axis in piece.axes:
        text = text.replace(f"{{{axis}}}", "0")
    return text


def _value(bound: BoundManifest, field: str) -> Any:
    found: Resolved | None = bound.fields.get(field, bound.functions.get(field))
    return found.value if found is not None and found.known else None


def _branch(bound: BoundManifest, owner: str) -> Branch | None:
    found = ((b, owner_of(b, stack)) for stack in bound.manifest.stacks for b in stack.branches)
    return next((branch for branch, name in found if name == owner), None)
