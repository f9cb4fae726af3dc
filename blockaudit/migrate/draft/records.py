"""What a draft comes to: a map of what was proved, and what nothing proves."""

from __future__ import annotations

import msgspec

from blockaudit.records.migration import MigrationMap


class Undecided(msgspec.Struct, frozen=True):
    """One thing that no manifest and no shape decides: templates or a config key, and why. No rule stands for it.

    `sources` are templates of the source that are left over with it.
    """

    subject: str
    why: str
    sources: tuple[str, ...] = ()


class Drafted(msgspec.Struct, frozen=True):
    """A drafted map, what it leaves out, and remarks. `hints` rest on names, which are no evidence: for a reader."""

    map: MigrationMap
    undecided: tuple[Undecided, ...] = ()
    remarks: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
