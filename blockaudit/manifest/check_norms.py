"""Norm sites of a block manifest: what a family implies, and what contradicts it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from blockaudit.manifest.fields import PLACEMENT
from blockaudit.manifest.view import View, sites
from blockaudit.records.manifest import Manifest, Norm, Subset

WORK_DTYPES = ("float64", "float32", "tfloat32", "bfloat16", "float16", "input")
COUPLED = {"batchnorm": "examples", "powernorm": "examples", "instancenorm": "positions"}
CENTRED = ("layernorm", "layernorm_std_eps", "groupnorm", "instancenorm", "batchnorm")
UNCENTRED = ("rmsnorm", "prmsnorm", "scalenorm", "powernorm", "dyt")
STATELESS = ("dyt", "none")


def norms(manifest: Manifest) -> Iterator[str]:
    """Findings on every norm site."""
    view = View(manifest)
    for place, site, norm in sites(manifest):
        found = _Site(place, site, norm, manifest, view)
        for rule in _RULES:
            yield from (f"{place}: {said}" for said in rule(found))
    yield from _instances(manifest)


@dataclass(frozen=True, slots=True)
class _Site:
    place: str
    site: str
    norm: Norm
    manifest: Manifest
    view: View

    def of(self, own: Any, inherited: Any) -> Any:
        """A field: the site's own value, else the manifest's; None where neither gives one or it is not known."""
        value = inherited if own is UNSET else own
        return None if value is UNSET else self.view.resolved(value).value if not isinstance(value, str) else value

    @property
    def family(self) -> Any:
        return self.of(self.norm.family, self.manifest.norm.family)

    @property
    def scale(self) -> Any:
        return self.of(self.norm.scale, self.manifest.norm.scale)


def _placement(s: _Site) -> Iterator[str]:
    own, implied = s.norm.placement, PLACEMENT.get(s.site, "none")
    if own is not UNSET and s.view.value(own) != implied and not isinstance(own, str):
        yield f"placement: expected {implied} at this site, found {s.view.value(own)}"
    if isinstance(own, str) and own != implied:
        yield f"placement: expected {implied} at this site, found {own}"
    if s.site == "unplaced" and s.manifest.witness == "declared":
        yield "unplaced: a declared manifest places its norms; give it a branch and a site"


def _statistics(s: _Site) -> Iterator[str]:
    core, norm = s.manifest.norm, s.norm
    center = s.of(norm.center, core.center)
    if center is True and s.family in UNCENTRED:
        yield f"center: {s.family} subtracts no mean"
    if center is False and s.family in CENTRED:
        yield f"center: {s.family} subtracts the mean"
    correction = s.of(norm.variance_correction, core.variance_correction)
    if correction and s.family in UNCENTRED:
        yield f"variance_correction: {s.family} has no variance to correct"
    algorithm = s.of(norm.algorithm, core.algorithm)
    if algorithm == "welford" and center is False:
        yield "algorithm: welford keeps a running mean, and no mean is subtracted"
    axes: Any = s.of(norm.reduction_axes, core.reduction_axes) or ()
    rank = len(s.manifest.state_layout)
    if rank and any(not -rank <= axis < rank for axis in axes):
        yield f"reduction_axes: {list(axes)} on a state of {rank} axes"
    if s.family in STATELESS and axes:
        yield f"reduction_axes: {s.family} reduces over nothing"


def _epsilon(s: _Site) -> Iterator[str]:
    core, norm = s.manifest.norm, s.norm
    epsilon, where = s.of(norm.epsilon, core.epsilon), s.of(norm.epsilon_location, core.epsilon_location)
    if s.family in STATELESS and (epsilon is not None or where is not None):
        yield f"epsilon: {s.family} has no root and no epsilon; give null for both"
    elif isinstance(epsilon, int | float) and not 0 <= epsilon < 1:
        yield f"epsilon: {epsilon} is no small number"
    if s.family == "layernorm_std_eps" and where == "inside":
        yield "epsilon_location: layernorm_std_eps adds epsilon to the deviation, outside the root"


def _affine(s: _Site) -> Iterator[str]:
    core, norm = s.manifest.norm, s.norm
    shape = [] if norm.shape is UNSET else norm.shape
    if s.scale == "none" and s.of(norm.scale_offset, core.scale_offset):
        yield "scale_offset: there is no scale for it"
    if s.scale == "per_head" and not s.site.startswith("inner") and s.family != "qknorm":
        yield "scale: per_head scales belong to norms inside attention"
    if s.scale == "scalar" and any(side != "1" for side in shape):
        yield f"scale: one scalar, and the shape is [{', '.join(shape)}]"
    if not norm.module and norm.shape is not UNSET:
        yield "shape: there is no module to have it"
    if s.of(norm.bias, core.bias) is True and s.family == "scalenorm":
        yield "bias: scalenorm has one scalar and no bias"


def _names(s: _Site) -> Iterator[str]:
    core, norm = s.manifest.norm, s.norm
    given: Any = s.of(norm.names, core.names) or {}
    state: Any = s.of(norm.persistent_state, core.persistent_state) or ()
    roles = ("weight", "bias", *state)
    yield from (f"names: a norm has no tensor {role}; it has {', '.join(roles)}" for role in given if role not in roles)
    called = [given.get(role, role) for role in roles]
    yield from (f"names: two tensors are called {name}" for name in sorted({n for n in called if called.count(n) > 1}))


def _numerics(s: _Site) -> Iterator[str]:
    core, norm = s.manifest.norm, s.norm
    work, order = s.of(norm.work_dtype, core.work_dtype), s.of(norm.cast_order, core.cast_order)
    if work is not None and work not in WORK_DTYPES:
        yield f"work_dtype: expected one of {', '.join(WORK_DTYPES)}, found {work}"
    if work == "input" and order not in (None, "none"):
        yield f"cast_order: {order}, and the work is done in the input's own dtype"


def _coupling(s: _Site) -> Iterator[str]:
    core, norm = s.manifest.norm, s.norm
    couples: Any = s.of(norm.couples, core.couples) or ()
    state: Any = s.of(norm.persistent_state, core.persistent_state) or ()
    padding = s.of(norm.padding_policy, core.padding_policy)
    needed = COUPLED.get(s.family)
    if needed and needed not in couples:
        yield f"couples: {s.family} ties {needed} together; name them"
    if couples and not needed and s.family not in ("groupnorm", None):
        yield f"couples: {s.family} statistics stay inside a row"
    if (couples or needed) and not padding:
        yield "padding_policy: padded positions would enter the statistics; say what becomes of them"
    if padding and not (couples or needed):
        yield "padding_policy: statistics stay inside a row, padding cannot enter them"
    # PRepBN folds to an affine map because its running statistics are stored (SLAB, 2024).
    if s.family in ("batchnorm", "powernorm") and not state:
        yield f"persistent_state: {s.family} keeps running statistics; name them"
    if state and s.family not in ("batchnorm", "powernorm", "instancenorm", None):
        yield f"persistent_state: {s.family} keeps no statistics"


def _partial(s: _Site) -> Iterator[str]:
    core, norm = s.manifest.norm, s.norm
    subset, groups = s.of(norm.subset, core.subset), s.of(norm.groups, core.groups)
    if (s.family == "groupnorm") != (groups is not None) and s.family is not None:
        yield f"groups: {s.family} with {'no' if groups is None else groups} groups"
    if (s.family == "prmsnorm") != isinstance(subset, Subset) and s.family is not None:
        yield f"subset: {s.family} with {'a' if subset else 'no'} subset"
    if not isinstance(subset, Subset):
        return
    size, listed = s.view.value(subset.size), subset.coordinates
    if isinstance(listed, list) and size is not None and len(listed) != size:
        yield f"subset: {len(listed)} coordinates and size {size}"
    if isinstance(listed, str) and size is None:
        yield f"subset: {listed} coordinates need a size"
    if subset.resampled and listed != "random":
        yield "subset: only a random subset is drawn again"
    if subset.resampled and not subset.distributed_owner:
        yield "subset: ranks would draw different coordinates; name the distributed_owner"


_RULES = (_placement, _statistics, _epsilon, _affine, _names, _numerics, _coupling, _partial)


def _instances(manifest: Manifest) -> Iterator[str]:
    """Sites that share a module say so, and sites that say so share one."""
    by_id: dict[str, dict[str, str | None]] = {}
    for place, _, norm in sites(manifest):
        instance = norm.instance
        if isinstance(instance, str):
            by_id.setdefault(instance, {})[place] = None if norm.module is UNSET else norm.module
        owner = norm.owner
        if isinstance(owner, str) and not owner.strip():
            yield f"{place}: owner is empty; name it or leave it out"
    for instance, places in by_id.items():
        if len(places) == 1:
            yield f"{next(iter(places))}: instance {instance!r} is at no other site"
        if len(set(places.values())) > 1:
            yield f"{', '.join(places)}: one instance {instance!r} and several modules"
