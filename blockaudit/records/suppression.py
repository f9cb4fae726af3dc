"""What takes a finding out of the verdict: a waiver that somebody answers for, or a baseline that already had it."""

from __future__ import annotations

import msgspec

from blockaudit.records.report import Place


class Scope(msgspec.Struct, frozen=True):
    """What a waiver covers, as patterns in which `*` is any text and `?` any one character.

    `subject` has to match every subject of a finding, `tensors` every tensor that it names (it needs one), `source` the
    SOURCE audited, whole or the end of its path. An empty pattern asks nothing.
    """

    subject: str = ""
    tensors: str = ""
    source: str = ""


class Waiver(msgspec.Struct, frozen=True):
    """A finding that is known and accepted until a day, and who answers for it.

    `rule` is a code, a prefix (`N2`) or a name; `expires` an ISO date, the last day on which it holds. `place` is where
    it is written.
    """

    rule: str
    scope: Scope
    reason: str
    owner: str
    expires: str
    place: Place | None = None


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A finding of a baseline, matched by `code`, `subject` and `fingerprint`; `name` and `message` are for readers."""

    code: str
    subject: str
    fingerprint: str
    name: str = ""
    message: str = ""


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The findings that one audit had, by the kind and level of that audit (`schemas/baseline.schema.json`)."""

    schema: str
    kind: str
    level: str
    findings: tuple[Known, ...]
