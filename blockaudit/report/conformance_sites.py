"""Where the candidate first differs, with the sites around it; and every site that fails of its own accord."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from blockaudit.records.conformance import Conformance, SiteResult
from blockaudit.records.layers import ranges, template
from blockaudit.records.sites import parse
from blockaudit.report.escape import escape
from blockaudit.report.layout import Line, Span, table, wrapped
from blockaudit.report.words import count

# Sites shown on either side of the first divergence, and rows of the table of failures.
_AROUND, _MOST = 3, 12
# How people say the metrics.
METRICS = {
    "rms_rel": "RMS relative", "row_rel": "one token's RMS", "max_abs": "max abs", "bits": "bits that differ",
    "non_finite": "not finite",
}  # fmt: skip


def first(run: Conformance, width: int) -> list[Line]:
    """The first divergence among the sites that were executed before and after it in the same mode and dtype."""
    odd = run.first
    if odd is None:
        return []
    head: Line = (
        ("First divergence", "head"),
        (f"  {escape(odd.site)}", "bad"),
        (f"  {odd.mode}, {escape(odd.dtype)}{_rows(odd)}", "dim"),
    )
    rows = [_context(site, site is odd or site == odd) for site in around(run, odd)]
    titles: list[Span] = [("", ""), ("metric", "dim"), ("observed", "dim"), ("tolerance", "dim"), ("", "")]
    return [(), head, *table([titles, *rows]), *wrapped("  ", worst(odd), width)]


def around(run: Conformance, odd: SiteResult) -> list[SiteResult]:
    """The first divergence with the sites that were executed before and after it in the same mode and dtype."""
    same = [site for site in run.sites if (site.mode, site.dtype) == (odd.mode, odd.dtype)]
    at = next((i for i, site in enumerate(same) if site.site == odd.site), None)
    return [odd] if at is None else same[max(at - _AROUND, 0) : at + _AROUND + 1]


def _context(site: SiteResult, here: bool) -> list[Span]:
    shade = "" if here else "dim"
    name: Span = (f"  {'>' if here else ' '} {escape(site.site)}", "bad" if here else "")
    if site.passed is None:
        return [name, ("", ""), ("", ""), ("", ""), ("not compared", "dim")]
    verdict: Span = ("ok", "good") if site.passed else ("FAILS", "bad")
    return [name, (metric(site), shade), (f"{site.observed:.3g}", shade), (f"{site.tolerance:.3g}", shade), verdict]


def metric(site: SiteResult) -> str:
    """What a site is judged by, in words."""
    return METRICS.get(site.metric, escape(site.metric))


def _rows(site: SiteResult) -> str:
    return f", {escape(site.probe)} rows" if site.probe else ""


def worst(site: SiteResult) -> str:
    """Where it is worst, by every measure."""
    seen = site.difference
    parts = [
        f"worst at token {seen.token}, channel {seen.channel}",
        f"max abs {seen.max_abs:.3g}, RMS relative {seen.rms_rel:.3g}, cosine {seen.cosine:.6g}, {seen.ulp:.4g} ulp",
        "" if seen.bits is None else f"{100 * seen.bits:.3g} % of bits differ",
        "" if site.floor is None else f"noise floor {site.floor:.3g}",
        count(seen.non_finite, "number") + " not finite" if seen.non_finite else "",
    ]
    return "; ".join(filter(None, parts))


def failing(run: Conformance) -> list[Line]:
    """Failing sites by mode, layers together; those that only follow an earlier failure are a number."""
    failed = [site for site in run.sites if site.passed is False]
    own = list(own_failures(failed))
    if not own:
        return []
    groups: dict[tuple[str, str, str, str], list[SiteResult]] = {}
    for site in own:
        groups.setdefault((site.mode, site.dtype, template(site.site), site.metric), []).append(site)
    rows = [_failure(sites) for sites in list(groups.values())[:_MOST]]
    titles: list[Span] = [
        ("Failing sites", "head"),
        *((t, "dim") for t in ("", "layers", "metric", "worst", "tolerance")),
    ]
    lines: list[Line] = [(), *table([titles, *rows])]
    if len(groups) > _MOST:
        lines.append(((f"  and {len(groups) - _MOST} more kinds of site (whole in --format json)", ""),))
    follow = len(failed) - len(own)
    if follow:
        lines.append(((f"  and {count(follow, 'comparison')} after these, as what feeds them already differs", "dim"),))
    return lines


def own_failures(failed: Iterable[SiteResult]) -> Iterator[SiteResult]:
    """Failures that nothing upstream can have caused: local ones, the first of a layer, the first of a whole run."""
    seen: set[tuple[object, ...]] = set()
    for site in failed:
        run = (site.mode, site.dtype)
        if site.mode == "layer":
            name = parse(site.site)
            place = (*run, name.stack, name.layer) if name and name.layer is not None else (*run, site.site)
        else:
            place = run
        if site.mode == "local" or place not in seen:
            seen.add(place)
            yield site


def _failure(sites: list[SiteResult]) -> list[Span]:
    most = max(sites, key=_excess)
    layers = [name.layer for s in sites if (name := parse(s.site)) and name.layer is not None]
    return [
        (f"  {most.mode} {escape(most.dtype)}", "dim"),
        (escape(template(most.site)), "bad"),
        (ranges(layers), ""),
        (metric(most), ""),
        (f"{most.observed:.3g}", "bad"),
        (f"{most.tolerance:.3g}", ""),
    ]


def _excess(site: SiteResult) -> float:
    """How far beyond its tolerance a site is; what is no number is farthest."""
    if not math.isfinite(site.observed):
        return math.inf
    return site.observed / site.tolerance if site.tolerance else math.inf if site.observed else 0.0
