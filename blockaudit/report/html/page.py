"""The page: reports as the template wants them, and the one door through which their texts reach it.

The page runs nothing and asks for nothing, and says so to the browser: its policy allows the one style sheet that it
carries, by hash. Filters are check boxes that the style sheet reads.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from blockaudit.records.report import Report
from blockaudit.records.wiring import Wiring
from blockaudit.report import suppressed, verdict
from blockaudit.report.escape import escape
from blockaudit.report.html import depth, wired
from blockaudit.report.html.contract import STATES, contract
from blockaudit.report.html.curves import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from blockaudit.report.html.listed import items, listed
from blockaudit.report.html.numbers import numbers
from blockaudit.report.wiring import svg
from blockaudit.report.wiring.layout import layout
from blockaudit.report.wiring.shapes import label
from blockaudit.report.words import count, quantity, size

# Reports that one page has in full; characters of one text; suppressed findings, files and gates that are listed.
_REPORTS, _LONGEST, _SUPPRESSED, _FILES, _GATES = 20, 600, 100, 60, 60
# Characters of a source in the title of a window, which is no place for more.
_TITLE = 44
# What the browser may load: the one style sheet of this page, and pictures that it carries in itself.
_POLICY = "default-src 'none'; style-src 'sha256-{hash}'; img-src data:; base-uri 'none'; form-action 'none'"
# Signs beside the words, so that nothing is said by colour alone.
_SIGNS = {"accepted": "\u2713", "rejected": "\u2715", "unverified": "?"}


def page(reports: Sequence[Report]) -> str:
    """One page of all reports; of more than it can hold, the first in full and every one in its table."""
    sheet = _sheet()
    text = (
        _environment()
        .get_template("page.html.j2")
        .render(
            sheet=Markup(sheet),  # our own file, and the drawing's own rules
            policy=_POLICY.format(hash=_hash(sheet)),
            reports=[_view(report) for report in reports[:_REPORTS]],
            all=[{"report": report, "summary": _summary(report)} for report in reports],
            name=label(reports[0].subject.source, _TITLE) if reports else "",
            version=reports[0].version if reports else "",
            chart={"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM},
            states=STATES,
            count=count,
        )
    )
    # References in place of what is no ASCII: a page is the same whatever the encoding of a pipe or a mail.
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader(__package__ or "blockaudit.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _finalized(printed: Any) -> Any:
    """What a template prints: markup of our own as it is, everything else with what cannot be printed made visible.

    The engine escapes what this returns for HTML; one text is never longer than a person can be asked to read.
    """
    if isinstance(printed, Markup):
        return printed
    text = str(printed)
    return escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... (whole in --format json)")


@cache
def _sheet() -> str:
    own = resources.files(__package__ or "blockaudit.report.html").joinpath("templates", "page.css")
    return f"{svg.style()}\n{own.read_text(encoding='utf-8')}"


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _view(report: Report) -> dict[str, Any]:
    """One report as the template reads it."""
    shown = report.suppressed[:_SUPPRESSED]
    return {
        "report": report,
        "sign": _SIGNS[report.verdict],
        "why": verdict.why(report),
        "held": verdict.held(report),
        "chosen": verdict.chosen(report),
        "summary": _summary(report),
        "facts": _facts(report),
        "files": report.subject.files[:_FILES],
        "more_files": max(len(report.subject.files) - _FILES, 0),
        "findings": listed(report.findings),
        "numbers": None if report.conformance is None else numbers(report.conformance),
        "contract": contract(report.contract),
        "suppressed": list(zip(items([one.finding for one in shown]), map(suppressed.word, shown), strict=True)),
        "more_suppressed": len(report.suppressed) - len(shown),
        "gates": report.gates[:_GATES],
        "more_gates": max(len(report.gates) - _GATES, 0),
        **_picture(report),
    }


def _picture(report: Report) -> dict[str, Any]:
    if report.picture is None:
        return {"wiring": None, "strips": [], "gains": None}
    ran = wired.executed(report.picture.wiring, report.contract)
    gains = depth.gains(report.picture.gains)
    return {
        "wiring": {"drawing": _drawing(ran or report.picture.wiring, report), "executed": ran is not None},
        "strips": depth.strips(report.picture.stacks, report),
        "gains": gains if gains.charts or gains.alone else None,
    }


def _drawing(wiring: Wiring, report: Report) -> Markup:
    drawing = layout(wiring)
    marked = wired.marked(report, {shape.site for shape in drawing.shapes if shape.site})
    return Markup(svg.render(drawing, marked, styled=False))  # svg escapes what it draws


def _summary(report: Report) -> list[tuple[str, int, str]]:
    """(kind, number, words) of what is counted at the head."""
    severities = [(s, report.count(s), s) for s in ("error", "warning", "note")]
    return [(kind, number, noun if number == 1 else f"{noun}s") for kind, number, noun in severities]


def _facts(report: Report) -> list[tuple[str, str]]:
    subject, chosen = report.subject, report.manifest
    dtypes = ", ".join(f"{name} {number:,}" for name, number in sorted(subject.dtypes.items())[:12])
    facts = [
        ("source", subject.source),
        ("base", subject.base),
        ("format", subject.format),
        ("revision", subject.revision),
        ("tensors", f"{subject.tensors:,} ({dtypes})" if dtypes else f"{subject.tensors:,}"),
        ("parameters", quantity(subject.parameters, "parameter")),
        ("size", size(subject.bytes)),
        ("manifest", verdict.chosen(report)),
        ("architecture", "" if chosen is None else chosen.architecture_id),
        ("manifest SHA-256", "" if chosen is None else chosen.sha256),
    ]
    return [(label, text) for label, text in facts if text]
