"""The rows that were run cannot tell a wrong epsilon from the declared one.

What it means:
    Every row is so large beside epsilon that other values of it give the same numbers to rounding, and no other witness
    says what is run; or the tolerance policy is so wide that they pass on probe rows too.

Why it matters:
    A comparison that a wrong value passes is no evidence of the right one. Cosine above 0.99999 passes an epsilon ten
    times too large.

Example:
    A trace recorded in bfloat16 whose rows have a mean square of 1: 1e-5 and 1e-6 give the same bits.

What to do:
    Add probe rows whose mean square is near epsilon, tighten the tolerance of norm sites, or let the candidate itself
    be run: a recorded trace cannot be asked again.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.reconcile.audit import Audit
from blockaudit.records.conformance import Blind, Conformance, Identified
from blockaudit.records.layers import numbers, ranges, spoken
from blockaudit.records.report import Finding
from blockaudit.rules.base import Rule, shown

RULE = Rule(
    "V104",
    "probe-insufficient",
    "add probe rows whose mean square is near epsilon, or tighten the tolerance of norm sites",
    severity="warning",
    lab=(39,),
    unverified=True,
)


def check(audit: Audit) -> Iterator[Finding]:
    """Epsilons that nobody could check, those that are open for one reason in the same layers together."""
    run = audit.conformance
    if run is None:
        return
    groups: dict[tuple[str, str, str], list[Identified | Blind]] = {}
    for question in (*run.identified, *run.blind):
        layers = _open(question, run, audit)
        if layers is not None:
            groups.setdefault((layers, repr(question.declared), type(question).__name__), []).append(question)
    named: set[str] = set()
    for (layers, *_), questions in groups.items():
        fresh = [q for q in questions if q.field not in named]
        named |= {q.field for q in fresh}
        if fresh:
            yield _finding(layers, fresh, run)


def _open(question: Identified | Blind, run: Conformance, audit: Audit) -> str | None:
    """The layers in which nobody said what this epsilon is; None where somebody did everywhere."""
    undecided = isinstance(question, Blind) or question.value is None
    if not undecided or question.declared is None or not question.field.endswith(".epsilon"):
        return None
    if isinstance(question, Blind) and question.asked:
        return question.layers  # the policy is blind, whoever else can see
    if _executed(question.field, run, audit):
        return None
    known = [f.layers for f in run.identified if f.field == question.field and f.value is not None]
    if not question.layers:
        return None if "" in known else ""
    if "" in known:
        return None
    left = numbers(question.layers) - {n for layers in known for n in numbers(layers)}
    return ranges(left) if left else None


def _executed(field: str, run: Conformance, audit: Audit) -> bool:
    """Whether the operators of this very candidate were read; a recorded trace has none."""
    rows = audit.reconciled.rows if audit.reconciled else ()
    return not run.recorded and any(row.field == field and "executed" in row.statements for row in rows)


def _finding(layers: str, questions: list[Identified | Blind], run: Conformance) -> Finding:
    first = questions[0]
    where = f" in {spoken(layers)}" if layers else ""
    others = [q.field.removesuffix(".epsilon") for q in questions[1:]]
    also = f"; the same at {', '.join(others)}" if others else ""
    return RULE.finding(
        first.field.removesuffix(".epsilon"),
        f"{_said(first)}{where}{also}",
        expected=first.declared,
        observed=None,
        evidence=_evidence(first, run),
        also=others,
        layers=layers,
    )


def _said(question: Identified | Blind) -> str:
    declared = shown(question.declared)
    if isinstance(question, Blind):
        return f"epsilon is declared {declared}, and {shown(question.alternative)} in its place would pass"
    return f"epsilon is declared {declared}, and the rows do not tell what it is{_between(question)}"


def _between(question: Identified) -> str:
    if question.interval is None:
        return ""
    low, high = question.interval
    return f" (anything between {low:.3g} and {high:.3g} gives these numbers)"


def _evidence(question: Identified | Blind, run: Conformance) -> str:
    if isinstance(question, Blind):
        dtype = f" in {question.dtype}" if question.dtype else ""
        return f"{question.metric} moves by {question.effect:.3g}{dtype}, and {question.tolerance:.3g} is allowed"
    return question.evidence or f"the trace of {run.candidate}"
