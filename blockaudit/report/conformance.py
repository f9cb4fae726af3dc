"""A conformance run in the terminal: what was run, where it first differs, what the numbers say, what explains it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blockaudit.records.conformance import Conformance, Diagnosis, Identified
from blockaudit.records.layers import by_template, ranges, spoken
from blockaudit.report import conformance_sites, conformance_updates
from blockaudit.report.escape import escape
from blockaudit.report.layout import Line, Span, table, wrapped
from blockaudit.report.words import count, shortened, value

# Entries that a person reads of one list; the rest is a number.
_MOST = 8


def conformance(run: Conformance, width: int) -> list[Line]:
    """The whole section, nothing where a part has nothing to say."""
    return [
        *_header(run, width),
        *conformance_sites.first(run, width),
        *conformance_sites.failing(run),
        *_identified(run, width),
        *_diagnosis(run, width),
        *conformance_updates.updates(run.telemetry, width),
        *conformance_updates.growth(run.growth),
        *_laws(run, width),
        *_not_compared(run, width),
    ]


def brief(run: Conformance, width: int) -> list[Line]:
    """One sentence: how much was compared, against what, and how it ended."""
    return [(), *wrapped("", f"{outcome(run)}; {reference(run)}, {conditions(run)}", width)]


def _header(run: Conformance, width: int) -> list[Line]:
    facts = [
        ("candidate", escape(run.candidate) + (" (a recorded trace)" if run.recorded else "")),
        ("reference", reference(run) + (f": {shortened(run.depth_reason)}" if run.depth_reason else "")),
        ("run", conditions(run)),
        ("policy", _policy(run)),
        ("outcome", outcome(run)),
    ]
    lines: list[Line] = [(), (("Conformance", "head"),)]
    for label, text in facts:
        lines += wrapped(f"  {label:<10}  ", text, width) if text else []
    return lines


def reference(run: Conformance) -> str:
    """How much of the reference is ours."""
    if run.depth == "full":
        return "full reference"
    return "wrapper reference (the branches are the candidate's own)"


def conditions(run: Conformance) -> str:
    """Modes, dtypes, device, layers and rows of the run."""
    modes = {"all": "local, layer and end-to-end"}.get(run.mode, escape(run.mode))
    layers = f", {spoken(escape(run.layers))}" if run.layers else ""
    size = f"batch {run.batch} x {count(run.seq_len, 'token')}, seed {run.seed}"
    return f"{modes} in {_dtypes(run)} on {escape(run.device)}{layers}, {size}"


def _dtypes(run: Conformance) -> str:
    """The dtypes that sites were judged in: a run that localises in float32 and judges in bfloat16 has both."""
    named = dict.fromkeys(site.dtype for site in run.sites) or {run.dtype: None}
    return " and ".join(escape(name) for name in named)


def _policy(run: Conformance) -> str:
    said = [run.policy.get(key) for key in ("name", "kind")]
    return ", ".join(shortened(text) for text in said if isinstance(text, str))


def outcome(run: Conformance) -> str:
    """How many comparisons there were, and how many fail."""
    compared = [site for site in run.sites if site.passed is not None]
    failed = sum(not site.passed for site in compared)
    total = count(len(compared), "comparison")
    said = (
        f"{failed:,} of {total} fail" if failed else f"all {total} within tolerance" if compared else "nothing compared"
    )
    return f"{said}; the run ended early: {shortened(run.failure)}" if run.failure else said


def _identified(run: Conformance, width: int) -> list[Line]:
    """Fields that the numbers put elsewhere than declared, one by one; of the others how many."""
    if not run.identified:
        return []
    known = [found for found in run.identified if found.value is not None]
    unknown = [found for found in run.identified if found.value is None]
    odd = [found for found in known if found.differs]
    loose = sum(found.declared is None for found in known)
    lines: list[Line] = [(), (("Identified from the numbers", "head"),)]
    lines += table([_odd(found) for found in odd[:_MOST]]) if odd else []
    told = {
        f"{len(odd) - _MOST} more differ from the manifest": len(odd) > _MOST,
        f"{count(len(known) - len(odd) - loose, 'statement')} as declared": len(known) > len(odd) + loose,
        f"{loose} of what the manifest does not declare": loose,
    }
    rest = "; ".join(text for text, holds in told.items() if holds)
    lines += wrapped("  ", rest, width, "dim") if rest else []
    for found in unknown[:_MOST]:
        told = f"{found.field} {spoken(found.layers)}".rstrip() + f": unknown{_within(found)}"
        lines += wrapped("  ", shortened(told), width, "warn")
    if len(unknown) > _MOST:
        lines += wrapped("  ", f"and {len(unknown) - _MOST} more unknown (whole in --format json)", width, "warn")
    return lines


def _odd(found: Identified) -> list[Span]:
    return [
        (f"  {escape(found.field)}", "bad"),
        (spoken(found.layers), ""),
        (f"{value(found.value)}{_within(found)}", "bad"),
        (f"declared {value(found.declared)}", ""),
    ]


def _within(found: Identified) -> str:
    if found.interval is None:
        return ""
    low, high = found.interval
    return f", between {low:.4g} and {high:.4g}"


def _diagnosis(run: Conformance, width: int) -> list[Line]:
    if not run.diagnosis:
        if run.explained is not False:
            return []
        return [(), (("Diagnosis", "head"),), *wrapped("  ", "no edit of the manifest explains the divergence", width)]
    lines: list[Line] = [(), (("Diagnosis: edits of the manifest that bring the candidate back, best first", "head"),)]
    lines += table([_edit(edit, run.diagnosis) for edit in run.diagnosis[:_MOST]])
    if len(run.diagnosis) > _MOST:
        lines += wrapped("  ", f"and {len(run.diagnosis) - _MOST} more (whole in --format json)", width)
    if run.explained is False:
        lines += wrapped("  ", "together they do not bring it back within tolerance", width, "warn")
    return lines


def _edit(edit: Diagnosis, among: Sequence[Diagnosis]) -> list[Span]:
    joined = edit.group and sum(other.group == edit.group for other in among) > 1
    rule = " ".join(
        part for part in (f"[{escape(edit.rule)}]" if edit.rule else "", "(jointly)" if joined else "") if part
    )
    return [
        (f"  {_share(edit.explains):>8}", "head"),
        (escape(edit.field), ""),
        (spoken(edit.layers), ""),
        (f"{value(edit.declared)} -> {value(edit.value)}", "bad"),
        (rule, "dim"),
    ]


def _share(part: float) -> str:
    """`99.98 %`; a share that is not the whole is not rounded up to it."""
    return "100 %" if part >= 1 else f"{min(100 * part, 99.99):.4g} %"


def _laws(run: Conformance, width: int) -> list[Line]:
    if not run.laws:
        return []
    rows: list[list[Span]] = [
        [(f"  {escape(law.name)}", ""), (f"{law.error:.3g}", ""), (f"bound {law.bound:.3g}", "dim"),
         ("holds", "good") if law.holds else ("FAILS", "bad"), (shortened(law.says), "dim")]
        for law in run.laws
    ]  # fmt: skip
    return [(), (("Residual algebra", "head"),), *table(rows)]


def _not_compared(run: Conformance, width: int) -> list[Line]:
    """Sites and questions that the run leaves open, and why."""
    passed_over = dict.fromkeys(site.site for site in run.sites if site.passed is None)
    parts = [
        *_named("sites without a reference of their own", passed_over, width),
        *_named("missing from the candidate", run.missing, width),
        *_named("unknown to the manifest", run.unexpected, width),
        *(line for reason in run.silent for line in wrapped("  ", shortened(reason), width)),
    ]
    return [(), (("Not compared", "head"),), *parts] if parts else []


def _named(label: str, sites: Iterable[str], width: int) -> list[Line]:
    groups = by_template(sites)
    if not groups:
        return []
    told = [" ".join(filter(None, (escape(name), _layers(layers)))) for name, layers in groups.items()]
    more = f" and {len(told) - _MOST} more (whole in --format json)" if len(told) > _MOST else ""
    return wrapped(f"  {label}: ", "; ".join(told[:_MOST]) + more, width)


def _layers(layers: Sequence[int]) -> str:
    return f"({spoken(ranges(layers))})" if layers else ""
