"""The report as a person reads it in a terminal: the verdict first, then why, then the contract, then what is open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blockaudit.records.report import Report, Verdict
from blockaudit.report import conformance, conversion
from blockaudit.report.contract_table import contract_table
from blockaudit.report.escape import escape
from blockaudit.report.findings import findings
from blockaudit.report.layout import Line, cells, pad, paint, wrapped
from blockaudit.report.suppressed import suppressed
from blockaudit.report.verdict import chosen, held, why
from blockaudit.report.words import count, quantity, size

FORMAT = "text"
SUFFIX = ".txt"
STREAMS = True

_STYLE: dict[Verdict, str] = {"accepted": "good", "rejected": "bad", "unverified": "warn"}


def render(report: Report, color: bool = False, width: int = 100, brief: bool = False) -> str:
    """The whole report; `brief` keeps the verdict and the findings."""
    lines = [*_verdict(report, width), *_subject(report, width), *findings(report.findings, width)]
    lines += suppressed(report.suppressed, width)
    if report.conformance is not None:
        show = conformance.brief if brief else conformance.conformance
        lines += show(report.conformance, width)
    if report.conversion is not None:
        tell = conversion.brief if brief else conversion.conversion
        lines += tell(report.conversion, width)
    if not brief:
        lines += contract_table(report.contract, width)
        lines += _gates(report, width)
        lines += _not_checked(report, width)
        lines += _summary(report, width)
    return paint(lines, color)


def render_many(reports: Sequence[Report]) -> str:
    """Several reports, an empty line after each."""
    return "".join(render(report) + "\n" for report in reports)


def _verdict(report: Report, width: int) -> list[Line]:
    style = _STYLE[report.verdict]
    # What does not count is said where the verdict is: nobody is to take a waived fault for none.
    apart = f", {said}" if (said := held(report)) else ""
    first: Line = (
        (report.verdict.upper(), style),
        (f" at {escape(report.level)} level{apart}  ", ""),
        (escape(report.subject.source), "head"),
        (f"  ({chosen(report)})", "dim"),
    )
    return [first, *(wrapped("  ", said, width, style) if (said := why(report)) else [])]


def _subject(report: Report, width: int) -> list[Line]:
    subject = report.subject
    dtypes = ", ".join(f"{escape(name)} {number:,}" for name, number in sorted(subject.dtypes.items()))
    parts = [
        f"{escape(subject.format)}, {count(len(subject.files), 'file')}",
        count(subject.tensors, "tensor"),
        quantity(subject.parameters, "parameter"),
        size(subject.bytes),
    ]
    lines = wrapped("  ", f"on the base {escape(subject.base)}", width, "dim") if subject.base else []
    lines += wrapped("  ", ", ".join(parts) + (f"  ({dtypes})" if dtypes else ""), width, "dim")
    if subject.revision:
        of = f" of {size(subject.bytes)}" if subject.bytes else ""
        lines += wrapped("  ", f"commit {escape(subject.revision)}, {size(subject.read)} read{of}", width, "dim")
    return lines


def _gates(report: Report, width: int) -> list[Line]:
    if not report.gates:
        return []
    lines: list[Line] = [(), (("Gates", "head"),)]
    for gate in report.gates:
        lines += wrapped("  ", escape(f"{gate['gate']}: {gate['status']}  {gate['why']}"), width)
    return lines


def _not_checked(report: Report, width: int) -> list[Line]:
    if not report.not_checked:
        return []
    title = f"Not checked at {escape(report.level)} level: {count(len(report.not_checked), 'field')}"
    lines: list[Line] = [(), ((title, "head"),)]
    groups = _grouped(report.not_checked)
    widest = max(cells(group) for group in groups)
    for group, sites in groups.items():
        said = "; ".join(f"{site}: {', '.join(names)}" if site else ", ".join(names) for site, names in sites.items())
        lines += wrapped(f"  {pad(group, widest)}  ", said, width)
    return lines


def _grouped(fields: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """`stack.branch` -> `site` -> fields, so that a long list says each name once."""
    groups: dict[str, dict[str, list[str]]] = {}
    for field in fields:
        *path, name = escape(field).split(".")
        groups.setdefault(".".join(path[:2]), {}).setdefault(".".join(path[2:]), []).append(name)
    return groups


def _summary(report: Report, width: int) -> list[Line]:
    checked = sum(row.agrees is not None for row in report.contract)
    unknown = sum(not row.known for row in report.contract)
    found = ", ".join(count(report.count(s), s) for s in ("error", "warning", "note"))
    held = f"; {len(report.suppressed):,} suppressed" if report.suppressed else ""
    said = f"{found}; {count(checked, 'field')} checked, {unknown} unknown{held}"
    return [(), *wrapped("", said, width, _STYLE[report.verdict])]
