"""Results of passes put together: one row a site, the first divergence, whether anything explains it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blockaudit.records.conformance import MODES, Mode, SiteResult
from blockaudit.records.sites import order
from blockaudit.trace.diagnosis.diagnose import Diagnoser
from blockaudit.trace.identify.solved import Solved
from blockaudit.trace.measure import CASTS

# What the numbers say of each norm's fields, by the norm's field and layer.
Fields = dict[tuple[str, int | None], list[Solved]]


def first_divergence(results: Sequence[SiteResult]) -> SiteResult | None:
    """The first failing site as executed: where nothing accumulates first, and in float32 before the release dtype."""
    failed = [r for r in results if r.passed is False]
    return min(failed, key=lambda r: (MODES.index(r.mode), r.dtype != "float32", order(r.site)), default=None)


def worst(results: Sequence[SiteResult]) -> Iterator[SiteResult]:
    """One row a site and mode: the worst of its batches and probes."""
    groups: dict[tuple[str, Mode], list[SiteResult]] = {}
    for result in results:
        groups.setdefault((result.site, result.mode), []).append(result)

    def strain(r: SiteResult) -> tuple[bool, float]:
        return r.passed is False, r.observed / r.tolerance if r.tolerance else r.observed

    for rows in groups.values():
        yield max(rows, key=strain)


def ordered(results: Sequence[SiteResult]) -> list[SiteResult]:
    """By dtype, mode and order of execution."""
    return sorted(results, key=lambda r: (r.dtype != "float32", MODES.index(r.mode), order(r.site)))


def explained(diagnosers: Sequence[Diagnoser], results: Sequence[SiteResult]) -> bool | None:
    """Whether edits explain all that fails; None where nothing does."""
    if all(r.passed is not False for r in results) or all(r.mode != "local" for r in results):
        return None  # edits are tried on what `local` compares
    return any(f.group for d in diagnosers for f in d.found) and not any(d.unexplained for d in diagnosers)


def casts(before: Fields, low: Fields) -> Fields:
    """Fields solved in float32, with those that only a low dtype shows put in their place."""
    return {key: [s for s in before.get(key, []) if s.field not in CASTS] + found for key, found in low.items()}
