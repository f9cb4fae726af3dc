"""What every auditing command does around its audit: every SOURCE in turn, its report shown, the worst status out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from blockaudit.cli import output
from blockaudit.errors import RequestError, UnwrittenError
from blockaudit.records.report import Report
from blockaudit.report import formats, text

UNSERVED = 2
# The worst status of several audits: not served over rejected over unverified over accepted (contract section 2).
_WORST_FIRST = (UNSERVED, 1, 3, 0)


class Presentation(msgspec.Struct, frozen=True):
    """How the reports of one command line are shown."""

    format_name: str
    files: Sequence[Path]
    quiet: bool
    no_color: bool
    allow_unverified: bool


def audit_each(sources: Sequence[str | None], audit: Callable[[str | None], Report], shown: Presentation) -> int:
    """Audit every SOURCE, show every report, and return the exit status of them all."""
    # Whatever is wrong with the request itself is said before an hour of work, not after.
    chosen = formats.by_name(shown.format_name)
    files = [(path, formats.by_suffix(path)) for path in shown.files]
    output.check_report_paths(shown.files, [s for s in sources if s is not None])

    several = len(sources) > 1
    if several:
        gc.enable()
    show = _shower(chosen, shown, several)
    statuses: set[int] = set()
    reports: list[Report] = []
    for status, report in _results(sources, audit):
        if report is not None:
            reports.append(report)
            show(report)
        statuses.add(0 if status == 3 and shown.allow_unverified else status)
    if several and not chosen.streams:
        output.say(chosen.render_many(reports))
    if not shown.quiet:
        for line in _unused(reports):
            output.remark(line)
    if reports:
        for path, form in files:
            output.write_report(path, form.render_many(reports) if several else form.render(reports[0]))
    return next(status for status in _WORST_FIRST if status in statuses)


def _unused(reports: Sequence[Report]) -> list[str]:
    """What takes findings out of the verdict and took none out of any report."""
    return [line for line in reports[0].unused if all(line in r.unused for r in reports)] if reports else []


def _results(
    sources: Sequence[str | None], audit: Callable[[str | None], Report]
) -> Iterator[tuple[int, Report | None]]:
    """Exit status and report of each SOURCE; one that cannot be served has its line on stderr and stops no other."""
    for source in sources:
        try:
            report = audit(source)
        except UnwrittenError as error:
            output.complain(str(error))
            yield UNSERVED, error.report
        except RequestError as error:
            output.complain(str(error))
            yield UNSERVED, None
        else:
            yield report.exit_status, report


def _shower(chosen: formats.Format, shown: Presentation, several: bool) -> Callable[[Report], None]:
    """What to do with a report as soon as it is there."""
    if chosen.name == text.FORMAT:
        color, width = output.wants_color(shown.no_color), output.width()
        end = "\n" if several else ""
        return lambda report: output.say(text.render(report, color, width, brief=shown.quiet) + end)
    if not several:
        return lambda report: output.say(chosen.render(report))
    if chosen.streams:
        return lambda report: output.say(chosen.render_many((report,)))
    return lambda report: None  # one document of them all, at the end
