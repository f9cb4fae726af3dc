"""A conformance run in markdown: how it ended, where it first differs, what the numbers say and what explains it."""

from __future__ import annotations

from blockaudit.records.conformance import Conformance, Diagnosis, Identified
from blockaudit.records.layers import spoken
from blockaudit.report.conformance import conditions, outcome, reference
from blockaudit.report.markdown_text import Room, code, prose, table
from blockaudit.report.words import value

# Rows of each table: the best edits come first, and a stack of one fault is one row.
_MOST = 8


def conformance(run: Conformance, room: Room) -> list[str]:
    """The section; a part that has nothing to say is left out."""
    odd = [found for found in run.identified if found.differs]
    measured = ("Field", "Layers", "Measured", "Declared")
    edits = ("Explains", "Field", "Layers", "Declared", "Edit", "Rule")
    best = "**Edits of the manifest that bring the candidate back, best first**"
    return [
        *room.fixed(["", "### Conformance", "", *_header(run)]),
        *table("**Identified from the numbers**", measured, map(_odd, odd), len(odd), "statement", room, _MOST),
        *table(best, edits, map(_edit, run.diagnosis), len(run.diagnosis), "edit", room, _MOST),
        *(room.fixed(["", "No edit of the manifest explains the divergence."]) if run.explained is False else []),
    ]


def _header(run: Conformance) -> list[str]:
    lines = [
        f"- candidate: {code(run.candidate)}",
        f"- reference: {reference(run)}",
        f"- run: {prose(conditions(run), 300)}",
        f"- outcome: {prose(outcome(run), 300)}",
    ]
    if (first := run.first) is not None:
        probe = f", {code(first.probe)} rows" if first.probe else ""
        seen = f"{code(first.metric)} {first.observed:.3g}, {first.tolerance:.3g} is allowed"
        lines.append(f"- first divergence: **{code(first.site)}** ({first.mode}, {code(first.dtype)}{probe}): {seen}")
    return lines


def _odd(found: Identified) -> list[str]:
    interval = "" if found.interval is None else f" (between {found.interval[0]:.4g} and {found.interval[1]:.4g})"
    return [
        code(found.field), code(spoken(found.layers)) if found.layers else "",
        code(f"{value(found.value)}{interval}"), code(value(found.declared)),
    ]  # fmt: skip


def _edit(edit: Diagnosis) -> list[str]:
    # A share that is not the whole is not rounded up to it.
    share = "100 %" if edit.explains >= 1 else f"{min(100 * edit.explains, 99.99):.4g} %"
    layers = code(spoken(edit.layers)) if edit.layers else ""
    rule = code(edit.rule) if edit.rule else ""
    return [share, code(edit.field), layers, code(value(edit.declared)), code(value(edit.value)), rule]
