"""Where a finding is shown in formats that point into files, and how its path is written as a URI reference."""

from __future__ import annotations

from blockaudit.records.report import Finding, Place, Report

# What starts a path that is an address already.
_SCHEMES = ("hf://",)


def places(finding: Finding, report: Report) -> tuple[Place, ...]:
    """At least one place: where nothing better is known, the source itself, as the user typed it."""
    return finding.places or (Place(_typed(report)),)


def _typed(report: Report) -> str:
    source = report.subject.source
    # A module is named FILE.py:NAME, and the file is what can be looked at.
    return source.rpartition(":")[0] or source if report.subject.format == "module" else source


def uri(path: str) -> str:
    """A path as a URI reference, percent-encoded: relative as it was typed, `file:` where it is absolute."""
    from urllib.parse import quote

    for scheme in _SCHEMES:
        if path.startswith(scheme):
            return scheme + quote(_octets(path.removeprefix(scheme)), safe="/@")
    return ("file://" if path.startswith("/") else "") + (quote(_octets(path.replace("\\", "/")), safe="/") or ".")


def _octets(path: str) -> bytes:
    """A file name that is no UTF-8 as the bytes that it has on disk; other lone surrogates have none."""
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return path.encode("utf-8", "backslashreplace")
