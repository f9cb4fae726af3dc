"""What the specification's topology registry calls a stack: a name only where that row is this stack."""

from __future__ import annotations

from msgspec import UNSET

from blockaudit.manifest.equation import (
    branch_scale,
    carries_norm,
    factor,
    final_norm,
    norm_name,
    reads,
    residual_of,
    word,
)
from blockaudit.manifest.view import View
from blockaudit.records.manifest import Branch, Scale, Stack

_NORM_IN = frozenset({"norm_in"})
_BY_SITES = {
    frozenset({"norm_post"}): "Post-LN",
    _NORM_IN: "Pre-LN",
    frozenset({"norm_in", "norm_out"}): "Peri-LN",
}


def topology(stack: Stack, view: View) -> str | None:
    """The registry's name, or None where it has none for this equation or something of it is not declared."""
    kinds = [view.branches(stack, kind) for kind, layers in view.kinds(stack).items() if layers]
    names = {_name(stack, branches, view) for branches in kinds}
    return names.pop() if len(names) == 1 else None


def norms_per_layer(stack: Stack, view: View) -> dict[str, int]:
    """Norm sites of one layer by layer kind, those inside branches too."""
    return {
        kind: sum(len(view.norms(b, stack)) for b in view.branches(stack, kind))
        for kind, layers in view.kinds(stack).items()
        if layers
    }


def sum_normalised(stack: Stack, view: View) -> bool:
    """Whether a norm stands behind a residual add."""
    return any("norm_post" in view.norms(b, stack) for kind in view.kinds(stack) for b in view.branches(stack, kind))


def _name(stack: Stack, branches: list[Branch], view: View) -> str | None:
    if not branches or stack.unplaced or not _plain(stack, view):
        return None
    parallel = view.value(stack.parallel)
    sites = [_sites(stack, b, view) for b in branches]
    scaled = _scaled(stack, branches, view)
    if scaled is None or None in sites or not isinstance(parallel, bool):
        return None
    if parallel:
        return None if scaled else _parallel(branches, sites, view)
    if len(set(sites)) != 1 or any(reads(b, view) not in ("state", "memory") for b in branches):
        return None
    name = _BY_SITES.get(sites[0] or frozenset())
    if name == "Peri-LN" and not final_norm(stack, view):
        return None  # a final norm is part of that contract
    # The registry's scaled form is a*x + b*F(N(x)); scaled Post-LN and Peri-LN are papers' own.
    return name if not scaled else "scaled residual" if name == "Pre-LN" else None


def _parallel(branches: list[Branch], sites: list[frozenset[str] | None], view: View) -> str | None:
    owners = [b.name for b, s in zip(branches, sites, strict=True) if s == _NORM_IN]
    if len(branches) > 1 and len(owners) == len(branches):
        return "parallel Pre-LN"
    others = [b for b, s in zip(branches, sites, strict=True) if s == frozenset()]
    one = len(owners) == 1 and len(owners) + len(others) == len(branches)
    if one and others and all(reads(b, view) == f"{owners[0]}.norm_in" for b in others):
        return "parallel Pre-LN, one norm read by all"
    return None


def _sites(stack: Stack, branch: Branch, view: View) -> frozenset[str] | None:
    """Where the norms of a branch stand, those inside it left out; None where one is of no known family."""
    norms = {site: norm for site, norm in view.norms(branch, stack).items() if not site.startswith("inner")}
    known = all(norm_name(norm, view) not in ("norm", "none") for norm in norms.values())
    return frozenset(norms) if known else None


def _plain(stack: Stack, view: View) -> bool:
    """Whether the state itself, or a constant times it, is carried and added to."""
    residual = residual_of(stack, view)
    shortcut, source = word(residual.shortcut, view), word(residual.shortcut_source, view)
    update = word(residual.update, view)
    known = shortcut in ("identity", "constant", "scalar", "vector") and source is not None and update == "add"
    return known and not carries_norm(residual, view)


def _scaled(stack: Stack, branches: list[Branch], view: View) -> bool | None:
    """Whether a factor stands in the equation; None where nobody says."""
    residual = residual_of(stack, view)
    values = [residual.shortcut_scale, *(branch_scale(b, residual) for b in branches)]
    if any(v is None or v is UNSET or (isinstance(v, Scale) and v.value is None and not v.learned) for v in values):
        return None
    return word(residual.shortcut, view) in ("scalar", "vector") or any(factor(v, view) for v in values)
