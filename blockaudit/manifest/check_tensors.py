"""Tensors of a block manifest: templates, shapes, ties."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from blockaudit.manifest.check_values import tensor_specs
from blockaudit.manifest.fields import norm_key
from blockaudit.manifest.view import sites
from blockaudit.records.manifest import Manifest, TensorSpec

_AXIS = re.compile(r"\{([^{}]*)\}")


def tensors(manifest: Manifest) -> Iterator[str]:
    """Findings on every tensor, and on the templates of norms."""
    used: set[str] = set()
    templates = list(_templates(manifest))
    # A symbol of dims may stand in a template too: it is one number, which the config gives.
    known = {*manifest.axes, *manifest.dims}
    for place, template in templates:
        axes = _AXIS.findall(template)
        used.update(axes)
        yield from (f"{place}: axis {{{a}}} is not in axes" for a in axes if a != "l" and a not in known)
        yield from (f"{place}: axis {{{a}}} comes twice in {template!r}" for a in set(axes) if axes.count(a) > 1)
    yield from (f"axes.{axis}: no template has it" for axis in manifest.axes if axis not in used)
    stored = {template for _, template in templates}
    for place, spec in tensor_specs(manifest):
        yield from (f"{place}: {said}" for said in _spec(spec, stored))
    yield from _roles(manifest)
    prefix = manifest.match.base_prefix
    if prefix and stored and not any(t.startswith(prefix) for t in stored):
        yield f"match.base_prefix: no template begins with {prefix!r}"
    twice = [key for key, times in Counter(manifest.config_reads).items() if times > 1]
    yield from (f"config_reads: {key!r} is given twice" for key in twice)


def _templates(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Every whole key that the manifest can expect, with its place."""
    for place, spec in tensor_specs(manifest):
        if spec.module is not None:
            yield place, f"{spec.module}.weight"
            if spec.bias is not False:
                yield place, f"{spec.module}.bias"
        elif spec.key is not None:
            yield place, spec.key
    for place, _, norm in sites(manifest):
        if norm.module:
            yield from ((place, norm_key(norm, manifest.norm, role)) for role in ("weight", "bias"))


def _spec(spec: TensorSpec, known: set[str]) -> Iterator[str]:
    if (spec.module is None) == (spec.key is None):
        yield "exactly one of module, key"
    if spec.key is not None and spec.bias is not False:
        yield "bias: a key is one tensor; only a module has a bias"
    if spec.layout == "in_out" and len(spec.shape or ()) < 2:
        yield f"layout: in_out on [{', '.join(spec.shape or ())}], which has no two axes"
    if spec.tied_to is not None and spec.tied_to not in known:
        yield f"tied_to: no tensor is called {spec.tied_to!r}"
    if spec.tied_to is None and spec.tie is not False:
        yield "tie: tied_to does not say to what"
    if spec.derived and spec.tied_to is not None:
        yield "derived: what the config determines is not tied to a parameter"
    if spec.optional and spec.tied_to is not None and spec.tie is True:
        yield "optional: what is always tied may always be absent; leave optional out"


def _roles(manifest: Manifest) -> Iterator[str]:
    """A role tells tensors of one owner apart; two alternatives of one role have conditions."""
    seen: dict[str, TensorSpec] = {}
    conditional = {f"{s.name}.{b.name}" for s in manifest.stacks for b in s.branches if b.when or b.layer_kinds}
    for place, spec in tensor_specs(manifest):
        other = seen.setdefault(place, spec)
        owner = place.rpartition(".")[0]
        # An embedding may be stored under several names, a buffer under an older one.
        alone = owner not in conditional and not owner.endswith(("embedding", "buffers"))
        if other is not spec and alone and spec.when is None and other.when is None:
            yield f"{place}: two tensors have this role, and neither has a condition"
