"""What an imported mapping does to one key, whoever wrote it down."""

from __future__ import annotations

from typing import Protocol

import msgspec

from blockaudit.records.operations import Operation


class Renamed(msgspec.Struct, frozen=True):
    """What becomes of a key: its new names (several where a tensor is cut), and what is done on the way.

    `group` is the same for keys that are joined, `place` the position among them (of `of`). `ops` act on the group.
    `why_not`: what our operations cannot say, in one line.
    """

    names: tuple[str, ...]
    group: int | None = None
    place: int = 0
    of: int = 1
    ops: tuple[Operation, ...] = ()
    why_not: str = ""


class Mapping(Protocol):
    """A mapping that says of any key of the source what it becomes."""

    @property
    def evidence(self) -> str: ...

    def renamed(self, key: str, axes: tuple[str, ...]) -> Renamed:
        """`axes`: those of the key's template that its new name may lack, so that they are stacked."""
        ...
