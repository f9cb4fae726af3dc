"""What a page with pictures shows beside the report: how the model is wired, its stacks, its norm gains by layer."""

from __future__ import annotations

import msgspec

from blockaudit.records.wiring import Wiring


class Depth(msgspec.Struct, frozen=True):
    """One stack by depth: `kinds` are the kinds of layer and the layers of each (one without a name: all alike)."""

    stack: str
    first: int
    layers: int
    kinds: tuple[tuple[str, tuple[int, ...]], ...] = ()


class Gains(msgspec.Struct, frozen=True):
    """The mean of one norm's stored gain, by layer; `layers` is empty for a norm that stands outside the layers."""

    site: str
    layers: tuple[int, ...]
    means: tuple[float, ...]


class Picture(msgspec.Struct, frozen=True):
    """The wiring as it is declared, and what was counted and read beside it."""

    wiring: Wiring
    stacks: tuple[Depth, ...]
    gains: tuple[Gains, ...]
