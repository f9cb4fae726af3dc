"""Workflow commands of GitHub Actions: findings as annotations of a job, on the file and line where they are."""

from __future__ import annotations

from blockaudit.records.report import Finding, Place, Report, Severity
from blockaudit.report.escape import escape
from blockaudit.report.locate import places
from blockaudit.report.verdict import held, why
from blockaudit.report.words import count, shortened, value

FORMAT = "github"
STREAMS = True

_COMMAND: dict[Severity, str] = {"error": "error", "warning": "warning", "note": "notice"}
# A step shows ten annotations of each kind; the rest is read in the log, where this many are enough.
_MOST = 200


def render(report: Report) -> str:
    """The verdict as a line of the log, then one command for each finding."""
    shown = report.findings[:_MOST]
    lines = [_verdict(report), *(_finding(finding, report) for finding in shown)]
    if len(report.findings) > len(shown):
        lines.append(f"and {count(len(report.findings) - len(shown), 'more finding')} (whole in --format json)")
    # Nothing else would tell the reader of the job's page that the audit is open.
    if report.verdict == "unverified" and not any(f.severity == "warning" for f in report.findings):
        lines.append(_command("warning", "blockaudit: unverified", why(report)))
    return "".join(f"{line}\n" for line in lines)


def _verdict(report: Report) -> str:
    apart = f", {said}" if (said := held(report)) else ""
    said = f"{report.verdict.upper()} at {report.level} level{apart}  {report.subject.source}"
    return _unmarked(f"blockaudit: {shortened(said)}")


def _finding(finding: Finding, report: Report) -> str:
    place = _place(finding, report)
    parts = [shortened(finding.message)]
    if finding.expected is not None or finding.observed is not None:
        parts.append(f"expected {shortened(value(finding.expected))}, found {shortened(value(finding.observed))}")
    if finding.help:
        parts.append(f"what to do: {shortened(finding.help)}")
    return _command(
        _COMMAND[finding.severity], f"{finding.code} {finding.name}", "\n".join(parts), place.path, place.line
    )


def _place(finding: Finding, report: Report) -> Place:
    """The source's own file where a finding is about it and a manifest: it is the one that a change is likelier in."""
    found = places(finding, report)
    mine = [place for place in found if place.line and place.path.startswith(report.subject.source)]
    return (mine or found)[0]


def _command(kind: str, title: str, message: str, file: str = "", line: int = 0) -> str:
    given = {"file": escape(file), "line": str(line) if line else "", "title": title}
    properties = ",".join(f"{name}={_property(text)}" for name, text in given.items() if text)
    return _unmarked(f"::{kind} {properties}::{_data(message)}")


def _data(text: str) -> str:
    """What the runner would read as the end of a command, as the runner writes it."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _unmarked(line: str) -> str:
    """The older mark of a command, `##[`, is one wherever it stands in a line."""
    return line.replace("##[", "## [")
