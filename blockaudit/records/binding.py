"""Keys of a checkpoint matched with the tensors that a bound manifest expects."""

from __future__ import annotations

from typing import Literal

import msgspec

from blockaudit.records.bound import ExpectedTensor
from blockaudit.records.checkpoint import TensorHeader
from blockaudit.records.quantised import Quantised


class Rename(msgspec.Struct, frozen=True):
    """One way in which every key (or many) differs from the manifest's spelling, undone before matching.

    `loads` says that the class which config.json names undoes it too.
    """

    kind: Literal["wrapper", "prefix", "legacy"]
    old: str
    new: str
    count: int
    loads: bool
    example: str
    collisions: tuple[str, ...] = ()


class Misshapen(msgspec.Struct, frozen=True):
    """A tensor whose shape is not the expected one. Both shapes in elements."""

    key: str
    expected: tuple[int | None, ...]
    found: tuple[int, ...]


class TemplateBinding(msgspec.Struct, frozen=True):
    """One template against the checkpoint. Keys are canonical (after renames)."""

    expected: ExpectedTensor
    found: int
    example: str | None  # a key that was found
    missing: tuple[str, ...]
    misshapen: tuple[Misshapen, ...]


class LayerGap(msgspec.Struct, frozen=True):
    """A stack whose stored layers are not those expected. Layer numbers as in the keys."""

    stack: str
    expected: int
    stored: int
    absent: tuple[int, ...]
    surplus: tuple[int, ...]
    source: str


class Binding(msgspec.Struct, frozen=True):
    """The closed account: every expected tensor is bound or missing, every stored one is claimed or unexpected."""

    tensors: dict[str, TensorHeader]
    stored_name: dict[str, str]  # canonical -> as stored, only where they differ
    templates: tuple[TemplateBinding, ...]
    unexpected: tuple[str, ...]
    foreign: dict[str, str]  # key -> part of the family that this class does not have, or ignores
    renames: tuple[Rename, ...]
    gaps: tuple[LayerGap, ...]
    quantised: Quantised
    claimed: int

    def stored(self, key: str) -> str:
        """The key as it stands in the file."""
        return self.stored_name.get(key, key)
