"""What a conversion did: the record behind `conversion-report.json` and the `conversion` part of a report."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class FileRow(msgspec.Struct, frozen=True):
    """One file: its name in its folder, its size in bytes, its SHA-256 (empty where hashes were waived)."""

    name: str
    size: int
    sha256: str = ""


class Ends(msgspec.Struct, frozen=True):
    """One end of a conversion. `semantic` is the hash of its tensors in whatever files; empty where waived."""

    manifest: str
    manifest_sha256: str
    files: tuple[FileRow, ...]
    tensors: int
    bytes: int
    semantic: str = ""


class TensorRow(msgspec.Struct, frozen=True):
    """One tensor of the target, and what it came from.

    `how`: its bytes are another tensor's (`copied`), came out of operations (`computed`), or were made (`filled`).
    `rule` counts the map's rules from 0; `digest` is the BLAKE3 of its bytes. `why` is the reason of what was made.
    """

    key: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    how: Literal["copied", "computed", "filled"]
    sources: tuple[str, ...] = ()
    rule: int | None = None
    ops: tuple[str, ...] = ()
    value: str = ""
    why: str = ""
    digest: str = ""


class RoundTripRow(msgspec.Struct, frozen=True):
    """One rule with operations, and how many tensors it takes.

    `identical`: the way back was run, and every bit of them came back. `not_reversible`: `op` has no inverse, as `why`
    says.
    """

    rule: int
    ops: tuple[str, ...]
    tensors: int
    outcome: Literal["identical", "not_reversible"]
    op: str = ""
    why: str = ""


class ConfigRow(msgspec.Struct, frozen=True):
    """One config key that is not the same on both sides; `null` is a value, and an absent one is told by `in_`."""

    key: str
    source: Any = None
    target: Any = None
    in_: tuple[Literal["source", "target"], ...] = ()


class MapUsed(msgspec.Struct, frozen=True):
    """The map: what it is called, the SHA-256 of its file, its text, and whether it was run backwards."""

    name: str
    sha256: str
    text: str
    reversed: bool = False


class Conversion(msgspec.Struct, frozen=True, tag_field="schema", tag="blockaudit/conversion/1"):
    """A conversion that was carried out. Says no time, host or path: the same input gives the same bytes.

    `plan_sha256` is of everything that was going to be done (steps, types, config, sizes of shards, version of the
    tool). `carried` are files that went along unchanged, `written` what else stands in the target.
    """

    version: str
    plan_sha256: str
    map: MapUsed
    source: Ends
    target: Ends
    carried: tuple[FileRow, ...]
    written: tuple[FileRow, ...]
    tensors: tuple[TensorRow, ...]
    round_trip: tuple[RoundTripRow, ...]
    aliases: dict[str, str]
    verified: dict[str, str]
    dropped: dict[str, str]
    config: tuple[ConfigRow, ...]
    conform: dict[str, Any] | None = None


class PreviousPart(msgspec.Struct, frozen=True):
    """One part of an artifact that a rollback puts back; where a folder has none of it, `present` is false."""

    part: str
    present: bool
    files: tuple[str, ...] = ()
    why: str = ""


class Rollback(msgspec.Struct, frozen=True, tag_field="schema", tag="blockaudit/rollback/1"):
    """The complete previous artifact, by the names and hashes of its files. `name` is that of its folder or file."""

    version: str
    name: str
    files: tuple[FileRow, ...]
    semantic: str
    parts: tuple[PreviousPart, ...]
