"""A conformance run as a page shows it: what was run, where it first differs, what explains it, updates by depth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import msgspec

from blockaudit.records.conformance import Conformance, Diagnosis, Identified, SiteResult, Telemetry
from blockaudit.records.layers import by_template, ranges, spoken, template
from blockaudit.records.sites import parse
from blockaudit.report.conformance import conditions, outcome, reference
from blockaudit.report.conformance_sites import METRICS, around, own_failures, worst
from blockaudit.report.html.curves import Chart, Point, axis_of, chart
from blockaudit.report.html.heat import Panel, excess, panels
from blockaudit.report.words import count, value

# Rows of one table, branches with charts of their own, layers in a table of numbers.
_ROWS, _BRANCHES, _LAYERS = 40, 6, 128


class Near(msgspec.Struct, frozen=True):
    """One site near the first divergence; `here` is the divergence itself."""

    site: str
    metric: str
    observed: str
    tolerance: str
    state: str
    here: bool


class Failure(msgspec.Struct, frozen=True):
    """One kind of site that fails of its own accord, layers together."""

    run: str
    site: str
    layers: str
    metric: str
    worst: str
    tolerance: str


class Update(msgspec.Struct, frozen=True):
    """One branch: its charts, and the numbers that they are made of."""

    branch: str
    charts: tuple[Chart, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]


class Numbers(msgspec.Struct, frozen=True):
    """The whole section."""

    facts: tuple[tuple[str, str], ...]
    first: SiteResult | None
    worst: str
    near: tuple[Near, ...]
    failures: tuple[Failure, ...]
    follow: int
    odd: tuple[tuple[str, str, str, str], ...]
    identified: str
    unknown: tuple[str, ...]
    edits: tuple[tuple[str, str, str, str, str, str], ...]
    explained: bool | None
    panels: tuple[Panel, ...]
    shown: Panel | None
    updates: tuple[Update, ...]
    growth: tuple[str, ...]
    laws: tuple[tuple[str, str, str, bool, str], ...]
    open: tuple[str, ...]


def numbers(run: Conformance) -> Numbers:
    """Everything that the page says of the run."""
    failed = [site for site in run.sites if site.passed is False]
    own = list(own_failures(failed))
    odd = [found for found in run.identified if found.differs]
    found = panels(run)
    return Numbers(
        facts=tuple(_facts(run)),
        first=run.first,
        worst="" if run.first is None else worst(run.first),
        near=() if run.first is None else tuple(_near(s, run.first) for s in around(run, run.first)),
        failures=_failures(own),
        follow=len(failed) - len(own),
        odd=tuple(map(_odd, odd[:_ROWS])),
        identified=_identified(run, len(odd)),
        unknown=tuple(_unknown(i) for i in islice((i for i in run.identified if i.value is None), _ROWS)),
        edits=tuple(_edit(edit, run.diagnosis) for edit in run.diagnosis[:_ROWS]),
        explained=run.explained,
        panels=tuple(found),
        shown=_shown(found, run.first),
        updates=_updates(run),
        growth=tuple(f"{s or 'the stack'}: p50 {q.p50:.3g}, max {q.max:.3g}" for s, q in run.growth),
        laws=tuple((law.name, f"{law.error:.3g}", f"{law.bound:.3g}", law.holds, law.says) for law in run.laws),
        open=tuple(_open(run)),
    )


def failing_layers(run: Conformance) -> set[int]:
    """Layers at which something fails that nothing before it explains."""
    sites = own_failures(site for site in run.sites if site.passed is False)
    return {name.layer for s in sites if (name := parse(s.site)) and name.layer is not None}


def _facts(run: Conformance) -> list[tuple[str, str]]:
    policy = ", ".join(str(run.policy[key]) for key in ("name", "kind") if isinstance(run.policy.get(key), str))
    facts = [
        ("outcome", outcome(run)),
        ("candidate", run.candidate + (" (a recorded trace)" if run.recorded else "")),
        ("reference", reference(run) + (f": {run.depth_reason}" if run.depth_reason else "")),
        ("run", conditions(run)),
        ("policy", policy),
        ("unfinished", run.unfinished),
    ]
    return [(label, text) for label, text in facts if text]


def _shown(found: Sequence[Panel], first: SiteResult | None) -> Panel | None:
    """The map that is seen first: that of the first divergence, else one that fails, else the first."""
    here = [p for p in found if first is not None and (p.mode, p.dtype) == (first.mode, first.dtype)]
    return next(iter([*here, *(p for p in found if p.failed), *found]), None)


def _near(site: SiteResult, first: SiteResult) -> Near:
    state = "not compared" if site.passed is None else "within" if site.passed else "fails"
    figures = ("", "") if site.passed is None else (f"{site.observed:.3g}", f"{site.tolerance:.3g}")
    return Near(site.site, METRICS.get(site.metric, site.metric), *figures, state, site is first or site == first)


def _failures(own: Sequence[SiteResult]) -> tuple[Failure, ...]:
    groups: dict[tuple[str, str, str, str], list[SiteResult]] = {}
    for site in own:
        groups.setdefault((site.mode, site.dtype, template(site.site), site.metric), []).append(site)
    return tuple(_failure(sites) for sites in islice(groups.values(), _ROWS))


def _failure(sites: Sequence[SiteResult]) -> Failure:
    most = max(sites, key=excess)
    layers = [name.layer for s in sites if (name := parse(s.site)) and name.layer is not None]
    metric = METRICS.get(most.metric, most.metric)
    figures = (f"{most.observed:.3g}", f"{most.tolerance:.3g}")
    return Failure(f"{most.mode} {most.dtype}", template(most.site), ranges(layers), metric, *figures)


def _odd(found: Identified) -> tuple[str, str, str, str]:
    within = ""
    if found.interval is not None:
        low, high = (f"{end:.4g}" for end in found.interval)
        within = f" ({low} to {high})" if low != high else ""
    return found.field, spoken(found.layers), value(found.value) + within, value(found.declared)


def _identified(run: Conformance, odd: int) -> str:
    """How much of what the numbers say is as declared."""
    known = [found for found in run.identified if found.value is not None]
    loose = sum(found.declared is None for found in known)
    told = [
        f"{odd - _ROWS} more differ from the manifest" if odd > _ROWS else "",
        f"{count(len(known) - odd - loose, 'statement')} as declared" if len(known) > odd + loose else "",
        f"{loose} of what the manifest does not declare" if loose else "",
    ]
    return "; ".join(filter(None, told))


def _unknown(found: Identified) -> str:
    within = "" if found.interval is None else f", between {found.interval[0]:.4g} and {found.interval[1]:.4g}"
    return f"{found.field} {spoken(found.layers)}".rstrip() + f": unknown{within}"


def _edit(edit: Diagnosis, among: Sequence[Diagnosis]) -> tuple[str, str, str, str, str, str]:
    joined = edit.group and sum(other.group == edit.group for other in among) > 1
    # A share that is not the whole is not rounded up to it.
    share = "100 %" if edit.explains >= 1 else f"{min(100 * edit.explains, 99.99):.4g} %"
    rule = edit.rule + (" (jointly)" if joined else "")
    return share, edit.field, spoken(edit.layers), value(edit.declared), value(edit.value), rule


def _updates(run: Conformance) -> tuple[Update, ...]:
    branches: dict[str, list[tuple[int, Telemetry]]] = {}
    for update in run.telemetry:
        name = parse(update.site)
        if name is not None and name.layer is not None:
            where = ".".join(filter(None, (name.stack, name.branch)))
            branches.setdefault(where, []).append((name.layer, update))
    marked = sorted(failing_layers(run))[:1]
    shown = list(islice(branches.items(), _BRANCHES))
    rho = {branch: [Point(n, u.rho.p50, u.rho.p05, u.rho.p95) for n, u in found] for branch, found in shown}
    cosine = {b: [Point(n, u.cosine.p50, u.cosine.p05, u.cosine.p95) for n, u in found] for b, found in shown}
    # One axis for all branches, so that they can be compared.
    of_rho = axis_of([p for points in rho.values() for p in points])
    of_cosine = axis_of([p for points in cosine.values() for p in points], signed=True)
    return tuple(
        Update(
            branch,
            (
                chart(f"{branch}: rho", rho[branch], of_rho, marked),
                chart(f"{branch}: cosine", cosine[branch], of_cosine, marked),
            ),
            tuple((n, _figures(u)) for n, u in found[:: -(-len(found) // _LAYERS)]),
        )
        for branch, found in shown
    )


def _figures(u: Telemetry) -> tuple[str, ...]:
    rho = (f"{n:#.3g}" for n in (u.rho.p05, u.rho.p50, u.rho.p95, u.rho.max))
    cosine = (f"{n:+.3f}" for n in (u.cosine.p05, u.cosine.p50, u.cosine.p95))
    return (*rho, *cosine, f"{u.growth.p50:#.3g}")


def _open(run: Conformance) -> list[str]:
    """Sites and questions that the run leaves open, and why."""
    passed_over = dict.fromkeys(site.site for site in run.sites if site.passed is None)
    named = {
        "without a reference of their own": passed_over,
        "missing from the candidate": run.missing,
        "unknown to the manifest": run.unexpected,
    }
    found: list[str] = []
    for label, sites in named.items():
        groups = by_template(sites)
        told = [f"{name} ({spoken(ranges(layers))})" if layers else name for name, layers in groups.items()]
        more = f" and {len(told) - _ROWS} more" if len(told) > _ROWS else ""
        found += [f"{label}: {'; '.join(told[:_ROWS])}{more}"] if told else []
    return [*found, *run.silent[:_ROWS]]
