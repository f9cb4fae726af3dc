"""What a conversion is asked, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from blockaudit.migrate.convert.document import alone
from blockaudit.migrate.convert.layout import TargetFile
from blockaudit.migrate.convert.run import Progress
from blockaudit.migrate.convert.source import Source
from blockaudit.migrate.convert.workplace import Workplace
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.conversion import Conversion, MapUsed
from blockaudit.records.migration import Plan


class RejectedError(Exception):
    """What was written is not what it should be, and nothing of it is kept."""


# Runs on the folder that is about to become TARGET: what it returns stands in the report, what it raises ends it there.
Conform = Callable[[str], dict[str, Any]]


class Request(msgspec.Struct, frozen=True):
    """One conversion. `most`: bytes of tensors in one file. `source_config`: the name of the source's config file.

    `manifests` are the source's and the target's, as (id, SHA-256). `previous`: what a rollback goes back to, where
    that is not the source. `document`: the bytes of conversion-report.json.
    """

    plan: Plan
    checkpoint: Checkpoint
    target: str
    map: MapUsed
    manifests: tuple[tuple[str, str], tuple[str, str]]
    most: int
    durable: bool = True
    hashing: bool = True
    source_config: str = "config.json"
    previous: Checkpoint | None = None
    conform: Conform | None = None
    progress: Progress | None = None
    document: Callable[[Conversion], bytes] = alone


class Outcome(msgspec.Struct, frozen=True):
    """What came of it. `was_there`: TARGET was this conversion already; `remarks` are lines for the user."""

    conversion: Conversion
    was_there: bool = False
    remarks: tuple[str, ...] = ()


class Running(msgspec.Struct, frozen=True):
    """A conversion under way. `along` are names of files that go along; `plan_sha256` says what is being done."""

    request: Request
    source: Source
    along: tuple[str, ...]
    files: Sequence[TargetFile]
    plan_sha256: str
    place: Workplace
