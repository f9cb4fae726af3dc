"""Values of a manifest: literals, and those that it does not hold itself."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET


class Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Closed and immutable, as every record of a manifest is."""


class Bound(Struct, frozen=True, rename={"if_": "if", "else_": "else"}):
    """A value that the manifest does not hold itself.

    Exactly one of: `config` (a key of config.json, dotted for nested ones, or several spellings; `default` is the class
    default that an absent or null key implies), `expr` (arithmetic over `dims`), `if` with `then` and `else`.
    `pinned` freezes the value: it is what the manifest declares, and what config.json says now is held against it.
    """

    config: str | tuple[str, ...] | None = None
    default: Value = None
    expr: str | None = None
    if_: str | None = None
    then: Value = None
    else_: Value = None
    pinned: Any = UNSET


Value = int | float | bool | str | list[Any] | Bound | None
