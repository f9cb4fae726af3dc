"""The report as one page that can be looked at: no script, no request, nothing to install beside a browser."""

from __future__ import annotations

from collections.abc import Sequence

from blockaudit.records.report import Report

FORMAT = "html"
SUFFIX = ".html"
# Reports are to carry what only a picture shows (`Report.picture`).
PICTURES = True


def render(report: Report) -> str:
    """One report."""
    return render_many((report,))


def render_many(reports: Sequence[Report]) -> str:
    """Several reports in one page, with a table of them at its head."""
    from blockaudit.report.html.page import page  # templates and drawing are loaded for a page alone

    return page(reports)
