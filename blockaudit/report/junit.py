"""JUnit XML: one test case for each contract field and each finding beside the fields, for the test view of a CI.

A suite fails exactly where its report is not accepted. JUnit has no warnings: what does not reject is skipped, with its
message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from blockaudit.records.contract import ContractRow
from blockaudit.records.report import Finding, Report, Suppressed, Verdict
from blockaudit.report.escape import escape
from blockaudit.report.verdict import chosen, why
from blockaudit.report.words import several, shortened, value

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

FORMAT = "junit"
SUFFIX = ".xml"

# Cases of one report: a hostile header may give a finding for each of a million keys.
_MOST = 20_000
_TENSORS = 20
_Outcome = Literal["", "failure", "error", "skipped"]
_VERDICT: dict[Verdict, _Outcome] = {"accepted": "", "rejected": "failure", "unverified": "error"}


class _Case(msgspec.Struct, frozen=True):
    """One test case: what went wrong with it (nothing: it passed), under which rule, and the text beside it."""

    group: str
    name: str
    outcome: _Outcome = ""
    kind: str = ""
    message: str = ""
    body: str = ""


def render(report: Report) -> str:
    """One document with one suite."""
    return render_many([report])


def render_many(reports: Sequence[Report]) -> str:
    """One document with a suite for each report."""
    from xml.etree import ElementTree as etree

    suites = [_suite(report) for report in reports]
    root = etree.Element("testsuites", {"name": "blockaudit"})
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    root.extend(suites)
    etree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{etree.tostring(root, encoding="unicode")}\n'


def _suite(report: Report) -> Element:
    from xml.etree.ElementTree import Element, SubElement

    cases = list(_cases(report))[:_MOST]
    suite = Element("testsuite", {"name": _text(report.subject.source) or "-", "tests": str(len(cases))})
    for name, outcome in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.outcome == outcome for case in cases)))
    properties = SubElement(suite, "properties")
    for name, said in _properties(report):
        SubElement(properties, "property", {"name": name, "value": said})
    for case in cases:
        suite.append(_element(case))
    return suite


def _properties(report: Report) -> Iterator[tuple[str, str]]:
    yield from (("kind", report.kind), ("verdict", report.verdict), ("level", _text(report.level)))
    yield "manifest", chosen(report)
    yield "version", _text(report.version)
    yield "findings", str(len(report.findings))


def _element(case: _Case) -> Element:
    from xml.etree.ElementTree import Element, SubElement

    element = Element("testcase", {"classname": case.group, "name": case.name})
    if case.outcome:
        inner = SubElement(element, case.outcome, {"message": case.message})
        if case.kind:
            inner.set("type", case.kind)
        inner.text = case.body or None
    return element


def _cases(report: Report) -> Iterator[_Case]:
    """The verdict, the fields, and the findings that no field stands for."""
    yield _verdict(report)
    disagreeing = {row.field.rpartition(".")[0] for row in report.contract if row.agrees is False}
    told = [f for f in report.findings if not disagreeing.isdisjoint(_subjects(f))]
    held = [s for s in report.suppressed if not disagreeing.isdisjoint(_subjects(s.finding))]
    yield from (_row(row, report, told, held) for row in report.contract)
    yield from (_finding(f, report) for f in report.findings if disagreeing.isdisjoint(_subjects(f)))
    yield from (_held(s) for s in report.suppressed if disagreeing.isdisjoint(_subjects(s.finding)))


def _verdict(report: Report) -> _Case:
    message = f"{report.verdict} at {_text(report.level)} level" + (f": {said}" if (said := why(report)) else "")
    outcome = _VERDICT[report.verdict]
    return _Case("verdict", _text(report.subject.source) or "-", outcome, report.verdict, message)


def _subjects(finding: Finding) -> tuple[str, ...]:
    return finding.subject, *finding.also


def _row(row: ContractRow, report: Report, told: Iterable[Finding], held: Iterable[Suppressed]) -> _Case:
    """One field: passed where witnesses agree, skipped where fewer than two speak, else what its finding says."""
    site = row.field.rpartition(".")[0]
    case = _Case(f"contract.{_text(site)}".rstrip("."), _text(row.field))
    if row.agrees:
        return case
    said = "\n".join(_said(row))
    if row.agrees is None:
        message = f"not checked at {_text(report.level)} level: fewer than two witnesses"
        return replace(case, outcome="skipped", message=message, body=said)
    named = [_finding(f, report) for f in told if site in _subjects(f)]
    named += [_held(one) for one in held if site in _subjects(one.finding)]
    if not named:
        message = "the witnesses disagree, and no rule that was asked for names it"
        return replace(case, outcome="skipped", message=message, body=said)
    first, body = named[0], "\n".join([said, *(one.body for one in named)])
    outcome = "failure" if first.outcome == "error" else "skipped"
    return replace(case, outcome=outcome, kind=first.kind, message=first.message, body=body)


def _said(row: ContractRow) -> Iterator[str]:
    for witness, statement in row.statements.items():
        yield f"{witness}: {shortened(value(statement.value))} ({_text(statement.evidence)})"


def _finding(finding: Finding, report: Report) -> _Case:
    # Without an error it was --strict that rejected.
    rejecting = "error" if report.count("error") or report.verdict != "rejected" else "warning"
    outcome: _Outcome = "error" if finding.severity == rejecting else "skipped"
    message = f"{finding.severity}: {shortened(finding.message)}"
    return _Case(*_named(finding), outcome, _rule(finding), message, _body(finding))


def _held(one: Suppressed) -> _Case:
    by = {"waiver": "waived", "baseline": "in the baseline"}[one.by]
    reasons = (one.reason, one.owner, f"until {one.expires}" if one.expires else "")
    said = ", ".join(_text(reason) for reason in reasons if reason)
    return _Case(
        *_named(one.finding), "skipped", _rule(one.finding), f"{by}: {said}" if said else by, _body(one.finding)
    )


def _named(finding: Finding) -> tuple[str, str]:
    return f"finding.{finding.name}", f"{_rule(finding)} {_text(finding.subject)}".rstrip()


def _rule(finding: Finding) -> str:
    return f"{finding.code} {finding.name}"


def _body(finding: Finding) -> str:
    """The finding as lines of text."""
    lines = [f"{_rule(finding)}  {_text(finding.subject)}", shortened(finding.message)]
    if finding.expected is not None or finding.observed is not None:
        lines += [f"expected: {shortened(value(finding.expected))}", f"found: {shortened(value(finding.observed))}"]
    lines += [f"evidence: {shortened(finding.evidence)}"] if finding.evidence else []
    lines += [f"tensors: {several(finding.tensors, _TENSORS)}"] if finding.tensors else []
    lines += [f"at: {_text(p.path)}" + (f", line {p.line}" if p.line else "") for p in finding.places]
    lines += [f"what to do: {shortened(finding.help)}"] if finding.help else []
    return "\n".join(lines)


def _text(text: str) -> str:
    """XML has no word for control characters and lone surrogates, and nobody reads a name of a million letters."""
    return escape(shortened(text))
