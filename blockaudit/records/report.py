"""Findings and the report: what every output format renders and nothing else."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from blockaudit.records.conformance import Conformance
from blockaudit.records.contract import ContractRow
from blockaudit.records.conversion import Conversion
from blockaudit.records.picture import Picture

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
Verdict = Literal["accepted", "rejected", "unverified"]
EXIT_STATUS: dict[Verdict, int] = {"accepted": 0, "rejected": 1, "unverified": 3}


class Place(msgspec.Struct, frozen=True):
    """Where a reader can look: a file as the user would write its path, and a line counted from 1 (0: no line)."""

    path: str
    line: int = 0


class Finding(msgspec.Struct, frozen=True):
    """One fault, once: where it repeats in every layer, `subject` or `message` carries the range.

    `also` are the other subjects at which the same fault stands, `layers` those layers of them that have it, where they
    are known and not all (`0-3, 7`).
    """

    code: str
    name: str
    severity: Severity
    subject: str
    message: str
    tensors: tuple[str, ...] = ()
    expected: Any = None
    observed: Any = None
    evidence: str = ""
    help: str = ""
    lab: tuple[int, ...] = ()
    places: tuple[Place, ...] = ()
    also: tuple[str, ...] = ()
    layers: str = ""

    @property
    def hinders(self) -> bool:
        """Whether nothing can be run for it: unreadable files, missing keys, shapes or a config that do not fit."""
        return self.severity == "error" and self.code[:1] in ("F", "K", "S", "C")


class Suppressed(msgspec.Struct, frozen=True):
    """A finding that counts for nothing, and on whose word: a waiver's, or a baseline's that already had it."""

    finding: Finding
    by: Literal["waiver", "baseline"]
    reason: str = ""
    owner: str = ""
    expires: str = ""  # ISO date; empty in a baseline


class RuleText(msgspec.Struct, frozen=True):
    """What a rule says of itself: `sections` are pairs of heading and paragraph, in the order to print them."""

    code: str
    name: str
    severity: Severity
    group: str
    summary: str
    help: str
    sections: tuple[tuple[str, str], ...] = ()
    lab: tuple[int, ...] = ()


class Subject(msgspec.Struct, frozen=True):
    """The thing audited. `bytes` counts tensor bytes, `parameters` elements of logical tensors.

    Quantised weights count unpacked where their shape is known, without scales and other companions.
    Of a hub, `revision` is the commit that was read, `hashes` the SHA-256 that it publishes of each file, and `read`
    how many bytes the audit looked at (not in the JSON). `base` is the model that an adapter was audited on.
    """

    source: str
    format: str
    files: tuple[str, ...]
    tensors: int
    parameters: int
    bytes: int
    dtypes: dict[str, int]
    revision: str = ""
    hashes: dict[str, str] = {}
    read: int = 0
    base: str = ""


class ManifestChoice(msgspec.Struct, frozen=True):
    """Which manifest the audit used, how it was chosen and how sure (0 to 1)."""

    architecture_id: str
    id: str
    chosen_by: Literal["flag", "config", "keys"]
    confidence: float
    sha256: str


class Report(msgspec.Struct, frozen=True):
    """One audit, whole (contract section 3)."""

    kind: str
    verdict: Verdict
    level: str
    subject: Subject
    manifest: ManifestChoice | None
    contract: tuple[ContractRow, ...]
    findings: tuple[Finding, ...]
    not_checked: tuple[str, ...]
    version: str
    gates: tuple[dict[str, Any], ...] = ()
    evaluation_state: dict[str, Any] = {}
    conformance: Conformance | None = None  # of kind `conformance` alone
    conversion: Conversion | None = None  # of kind `conversion` alone
    suppressed: tuple[Suppressed, ...] = ()
    unused: tuple[str, ...] = ()  # waivers and baseline entries that no finding needed, each in a line; not in the JSON
    picture: Picture | None = None  # for a page with pictures, where one was asked for; not in the JSON
    rules: tuple[RuleText, ...] = ()  # every rule there is, for formats that document what they print; not in the JSON

    @property
    def exit_status(self) -> int:
        return EXIT_STATUS[self.verdict]

    def count(self, severity: Severity) -> int:
        return sum(f.severity == severity for f in self.findings)
