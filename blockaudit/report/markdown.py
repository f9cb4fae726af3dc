"""The report as GitHub-flavoured markdown, for a pull-request comment or a job summary.

A comment holds 65,536 characters. A report takes fewer, whatever was audited: what does not fit is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from blockaudit.records.contract import WITNESSES, ContractRow, Witness
from blockaudit.records.conversion import Conversion
from blockaudit.records.layers import spoken
from blockaudit.records.report import Finding, Report, Suppressed, Verdict
from blockaudit.report.conversion import facts
from blockaudit.report.markdown_conformance import conformance
from blockaudit.report.markdown_text import Room, code, prose, table
from blockaudit.report.verdict import chosen, held, why
from blockaudit.report.words import count, quantity, size, value

FORMAT = "markdown"
SUFFIX = ".md"

LIMIT = 48_000
# Less than this is no report: of more SOURCEs than have this much room, the rest is counted.
_LEAST = 4_000
_MARK: dict[Verdict, str] = {"accepted": "✅", "rejected": "❌", "unverified": "❔"}
# Rows of one table that somebody reads in a comment.
_FINDINGS, _HELD, _ROWS = 50, 25, 400


def render(report: Report) -> str:
    """One report."""
    return _render(report, LIMIT)


def render_many(reports: Sequence[Report]) -> str:
    """Reports one after another, within one comment."""
    shown = reports[: LIMIT // _LEAST]
    text = "\n".join(_render(report, LIMIT // len(shown)) for report in shown)
    rest = Counter(report.verdict for report in reports[len(shown) :])
    if rest:
        said = ", ".join(f"{number} {verdict}" for verdict, number in sorted(rest.items()))
        text += f"\n{count(rest.total(), 'more report')}, not shown here: {said}.\n"
    return text


def _render(report: Report, limit: int) -> str:
    room = Room(limit)
    parts = [_head(report, room), _findings(report, room), _suppressed(report.suppressed, room)]
    if report.conformance is not None:
        parts.append(conformance(report.conformance, room))
    if report.conversion is not None:
        parts.append(_conversion(report.conversion, room))
    parts.append(_contract(report, room))
    return "\n".join(line for part in parts for line in part) + "\n"


def _conversion(done: Conversion, room: Room) -> list[str]:
    """What was written from what, and what was proved of it."""
    rows = [f"- {label}: {prose(text)}" for label, text in facts(done)]
    return room.fixed(["", "### Conversion", "", *rows])


def _head(report: Report, room: Room) -> list[str]:
    """The verdict, what it is of and why; the marker lets a job find its earlier comment."""
    subject = report.subject
    facts = [
        code(subject.format), count(len(subject.files), "file"), count(subject.tensors, "tensor"),
        quantity(subject.parameters, "parameter"), size(subject.bytes),
    ]  # fmt: skip
    if subject.base:
        facts.append(f"on the base {code(subject.base)}")
    if subject.revision:
        facts.append(f"commit {code(subject.revision)}")
    reason = why(report)
    apart = f", {said}" if (said := held(report)) else ""
    lines = [
        "<!-- blockaudit -->",
        f"## {_MARK[report.verdict]} blockaudit: {report.verdict} at {code(report.level)} level{apart}",
        "",
        f"{code(subject.source)} ({prose(chosen(report), 200)})",
        *(["", prose(reason)] if reason else []),
        "",
        f"{', '.join(facts)}.",
        _summary(report),
    ]
    return room.fixed(lines)


def _summary(report: Report) -> str:
    checked = sum(row.agrees is not None for row in report.contract)
    unknown = sum(not row.known for row in report.contract)
    found = ", ".join(count(report.count(s), s) for s in ("error", "warning", "note"))
    held = f", {len(report.suppressed)} suppressed" if report.suppressed else ""
    return f"{found}{held}; {count(checked, 'field')} checked, {unknown} unknown."


def _findings(report: Report, room: Room) -> list[str]:
    head = ("Severity", "Rule", "Where", "What", "Expected", "Found", "What to do")
    rows = (_finding(finding) for finding in report.findings)
    return table("### Findings", head, rows, len(report.findings), "finding", room, _FINDINGS)


def _finding(finding: Finding) -> list[str]:
    told = finding.expected is not None or finding.observed is not None
    return [
        finding.severity,
        f"{finding.code} {finding.name}",
        _where(finding),
        prose(finding.message, 300),
        code(value(finding.expected), 80) if told else "",
        code(value(finding.observed), 80) if told else "",
        prose(finding.help, 300) if finding.help else "",
    ]


def _where(finding: Finding) -> str:
    """The subject, then the first place that can be opened."""
    subject = code(finding.subject, 100)
    if not finding.places:
        return subject
    place = finding.places[0]
    return f"{subject}<br>{code(f'{place.path}:{place.line}' if place.line else place.path, 120)}"


def _suppressed(held: Sequence[Suppressed], room: Room) -> list[str]:
    head = ("Rule", "Where", "By", "Why", "Owner", "Until")
    rows = (_held(one) for one in held)
    return table("### Suppressed", head, rows, len(held), "suppressed finding", room, _HELD)


def _held(one: Suppressed) -> list[str]:
    finding = one.finding
    said = [prose(one.reason, 300) if one.reason else "", *(code(t, 80) if t else "" for t in (one.owner, one.expires))]
    return [f"{finding.code} {finding.name}", code(finding.subject, 100), one.by, *said]


def _contract(report: Report, room: Room) -> list[str]:
    """The contract, folded: what disagrees first, since the end is what may have to go."""
    rows = report.contract
    if not rows:
        return []
    agrees = Counter(row.agrees for row in rows)
    title = f"Contract: {agrees[True]} agree, {agrees[False]} disagree, {agrees[None]} not checked"
    witnesses: list[Witness] = [w for w in WITNESSES if any(w in row.statements for row in rows)]
    ordered = sorted(rows, key=lambda row: row.agrees is not False)
    opening, closing = ["", f"<details><summary>{title}</summary>"], ["", "</details>"]
    room.fixed([*opening, *closing])
    body = table("", ("Field", *witnesses, ""), _rows(ordered, witnesses), len(rows), "field", room, _ROWS)
    return [*opening, *body, *closing]


def _rows(rows: Iterable[ContractRow], witnesses: Sequence[Witness]) -> Iterator[list[str]]:
    for row in rows:
        yield [code(row.field, 120), *(_said(row, w) for w in witnesses), _outcome(row)]


def _said(row: ContractRow, witness: Witness) -> str:
    statement = row.statements.get(witness)
    if statement is None:
        return ""
    layers = f" ({spoken(statement.layers)})" if statement.layers else ""
    return code(f"{value(statement.value)}{layers}", 60)


def _outcome(row: ContractRow) -> str:
    if row.agrees is not None:
        return "agrees" if row.agrees else "**disagrees**"
    return "one witness" if row.known else "unknown"
