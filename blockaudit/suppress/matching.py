"""Whether a waiver is of a finding."""

from __future__ import annotations

import os
import re
from functools import cache

from blockaudit.records.report import Finding
from blockaudit.records.suppression import Scope, Waiver
from blockaudit.rules import registry


def covers(waiver: Waiver, finding: Finding, source: str) -> bool:
    """Whether a waiver is of this finding of this SOURCE, whatever the day."""
    rule = _waivable(finding.code)
    return rule and registry.names(waiver.rule, finding.code, finding.name) and _within(waiver.scope, finding, source)


def covers_part(waiver: Waiver, finding: Finding) -> bool:
    """Whether a waiver's subject is that of one place of a finding with several."""
    places = (finding.subject, *finding.also)
    within = [bool(waiver.scope.subject) and _matches(waiver.scope.subject, s) for s in places]
    return registry.names(waiver.rule, finding.code, finding.name) and any(within) and not all(within)


def waivable(finding: Finding) -> bool:
    """Whether a finding may be taken out of the verdict at all."""
    return _waivable(finding.code)


@cache
def _waivable(code: str) -> bool:
    return registry.find(code).rule.waivable


def _within(scope: Scope, finding: Finding, source: str) -> bool:
    # A fault that repeats is one finding: a waiver of one of its places must not hide the others.
    if scope.subject and not all(_matches(scope.subject, s) for s in (finding.subject, *finding.also)):
        return False
    if scope.tensors and not (finding.tensors and all(_matches(scope.tensors, t) for t in finding.tensors)):
        return False
    return of_source(scope, source)


def of_source(scope: Scope, source: str) -> bool:
    """Whether a scope takes in this SOURCE: its whole name, or the end of its path (`models/tiny`)."""
    if not scope.source:
        return True
    if "://" in source:
        return _matches(scope.source, source)
    parts = os.path.abspath(source).split(os.sep)
    wanted = os.path.normpath(scope.source).replace(os.sep, "/")
    return any(_matches(wanted, "/".join(parts[start:])) for start in range(len(parts)))


def _matches(pattern: str, text: str) -> bool:
    return _compiled(pattern).fullmatch(text) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Stars and question marks alone: brackets are part of subjects and keys (`decoder[full].branch_order`)."""
    escaped = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.compile(escaped, re.DOTALL)
