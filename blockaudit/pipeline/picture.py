"""What a page with pictures needs beyond the report, from an audit that is already made: nothing is read again."""

from __future__ import annotations

from math import fsum, isfinite, nan

from msgspec.structs import replace

from blockaudit.manifest.load import LoadedManifest
from blockaudit.reconcile import expand
from blockaudit.reconcile.audit import Audit, Reconciled
from blockaudit.records.bound import StackSpan
from blockaudit.records.picture import Depth, Gains, Picture
from blockaudit.records.report import Report

# Layers that are drawn of a stack: no model is deeper, and a hostile config says any number.
_DEEPEST = 2048


def pictured(report: Report, audit: Audit, loaded: LoadedManifest | None) -> Report:
    """The report with its picture."""
    return replace(report, picture=picture(audit, loaded))


def picture(audit: Audit, loaded: LoadedManifest | None) -> Picture | None:
    """The picture of what was audited; None where no manifest says how it is wired."""
    if audit.reconciled is None or loaded is None:
        return None
    from blockaudit.manifest.wiring import wiring

    declared = audit.reconciled.declared
    return Picture(
        wiring(loaded.manifest, audit.config),
        tuple(_depth(span) for span in declared.spans if span.run and not span.ignored),
        tuple(_gains(audit.reconciled)),
    )


def _depth(span: StackSpan) -> Depth:
    return Depth(span.name, span.first, min(span.run or 0, _DEEPEST), span.kinds)


def _gains(reconciled: Reconciled) -> list[Gains]:
    """Every norm weight that was read, by its site; what one layer has several of (experts) together."""
    found: list[Gains] = []
    for template in reconciled.binding.templates:
        expected = template.expected
        if expected.what != "norm" or expected.role != "weight":
            continue
        layers = expected.layers if next(iter(expand.axes(expected)), "") == "l" else ()
        means = _means(reconciled, expand.keys(expected), max(len(layers), 1))
        if any(map(isfinite, means)):
            found.append(Gains(expected.owner, layers, means))
    return found


def _means(reconciled: Reconciled, keys: list[str], groups: int) -> tuple[float, ...]:
    """The mean of each of so many equal runs of keys; NaN where a vector of it was not read or is not finite."""
    stats, each = reconciled.norms.stats, len(keys) // groups
    read = [[stats[key].mean for key in keys[i : i + each] if key in stats] for i in range(0, len(keys), max(each, 1))]
    return tuple(fsum(means) / len(means) if means and all(map(isfinite, means)) else nan for means in read)
