"""Every rule, found by discovery: one module per rule, named after its code and name."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from functools import cache
from pkgutil import iter_modules

import msgspec

import blockaudit.rules
from blockaudit.errors import RequestError
from blockaudit.reconcile.audit import Audit
from blockaudit.records.report import SEVERITIES, Finding
from blockaudit.rules.base import Check, Rule


class Entry(msgspec.Struct, frozen=True):
    """A rule, its check, and the documentation that its module carries."""

    rule: Rule
    check: Check
    doc: str


@cache
def entries() -> tuple[Entry, ...]:
    """Every rule, by code."""
    names = sorted(m.name for m in iter_modules(blockaudit.rules.__path__) if m.name[1:4].isdigit())
    modules = [importlib.import_module(f"blockaudit.rules.{name}") for name in names]
    return tuple(Entry(m.RULE, getattr(m, "check", _nothing), m.__doc__ or "") for m in modules)


def _nothing(audit: Audit) -> tuple[Finding, ...]:
    """The check of a rule that judges something else than the audited thing, such as a waiver; its `of` finds."""
    del audit
    return ()


def known(code: str) -> bool:
    """Whether there is a rule of this code or name."""
    wanted = code.strip().lower()
    return any(wanted in (entry.rule.code.lower(), entry.rule.name) for entry in entries())


def find(code: str) -> Entry:
    """One rule by code or name. Raises RequestError."""
    wanted = code.strip().lower()
    for entry in entries():
        if wanted in (entry.rule.code.lower(), entry.rule.name):
            return entry
    import difflib

    names = [e.rule.name for e in entries()] + [e.rule.code for e in entries()]
    near = difflib.get_close_matches(code, names, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise RequestError(f"no rule {code!r}{hint} (`blockaudit rules` lists them)")


def chosen(select: Sequence[str], ignore: Sequence[str]) -> tuple[Entry, ...]:
    """Rules that `--select` and `--ignore` leave: codes, prefixes or names. Raises RequestError for an unknown one."""
    for item in (*select, *ignore):
        if not any(names(item, e.rule.code, e.rule.name) for e in entries()):
            raise RequestError(
                f"{item!r} names no rule: give a code (N201), a prefix (N2) or a name (epsilon-mismatch)"
            )
    return tuple(e for e in entries() if (not select or _any(select, e.rule)) and not _any(ignore, e.rule))


def _any(items: Sequence[str], rule: Rule) -> bool:
    return any(names(item, rule.code, rule.name) for item in items)


def names(item: str, code: str, name: str) -> bool:
    """Whether a code, a prefix or a name means the rule of this code and name."""
    return bool(item) and (code.startswith(item.upper()) or name == item)


def run(rules: Iterable[Entry], audit: Audit) -> tuple[Finding, ...]:
    """All findings, ordered by severity, code and subject."""
    return ordered(f for entry in rules for f in entry.check(audit))


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings by severity, then code, then subject."""
    return tuple(sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), f.code, f.subject, f.message)))


def leaves_unverified(findings: Iterable[Finding]) -> bool:
    """Whether any finding's rule leaves the audit unverified."""
    codes = {e.rule.code for e in entries() if e.rule.unverified}
    return any(f.code in codes for f in findings)
