"""Match the keys of a checkpoint with the tensors that a manifest expects: every one bound, missing or unexpected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from blockaudit.checkpoint.quantization.view import View
from blockaudit.reconcile import expand
from blockaudit.reconcile.names import canonical
from blockaudit.reconcile.quantised import left_plain, turned
from blockaudit.records.binding import Binding, LayerGap, Misshapen, TemplateBinding
from blockaudit.records.bound import BoundManifest, ExpectedTensor, StackSpan
from blockaudit.records.checkpoint import TensorHeader
from blockaudit.records.quantised import QuantisedWeight

# A config that asks for this many more keys than the checkpoint holds is a wrong count, not a list of missing keys.
_SURPLUS = 200_000


def match(bound: BoundManifest, view: View) -> Binding:
    """The account of keys. Renames (wrappers, roots, legacy names) are undone first and recorded."""
    expected = _within_reason(bound, view)
    expanded = [(e, expand.keys(e)) for e in expected]
    known = set[str]().union(*(keys for _, keys in expanded))
    tensors, stored_name, renames = _renamed(view, known, bound.base_prefix or bound.manifest.match.base_prefix)
    weights = _weights(view, tensors, stored_name)
    tensors = turned(tensors, weights, expanded)
    opaque = {name for name, weight in weights.items() if weight.shape is None}
    claimed: set[str] = set()
    templates: list[TemplateBinding] = []
    for e, keys in expanded:
        templates.append(_bind(e, keys, tensors, opaque, claimed))
    unexpected = tensors.keys() - claimed
    foreign = _foreign(bound, unexpected)
    unexpected -= foreign.keys()
    gaps = _gaps(bound, templates, tensors, unexpected)
    templates, unexpected = _without_gaps(bound, templates, unexpected, gaps)
    return Binding(
        tensors=tensors,
        stored_name=stored_name,
        templates=tuple(templates),
        unexpected=tuple(k for k in tensors if k in unexpected) if unexpected else (),
        foreign=foreign,
        renames=tuple(renames),
        gaps=tuple(gaps),
        quantised=left_plain(view, weights, templates, tensors, stored_name),
        claimed=len(claimed),
    )


def _weights(
    view: View, tensors: Mapping[str, TensorHeader], stored_name: Mapping[str, str]
) -> dict[str, QuantisedWeight]:
    """Quantised weights by canonical key."""
    if not view.quantised.weights:
        return {}
    stored = {w.stored: w for w in view.quantised.weights.values()}
    return {name: stored[key] for name in tensors if (key := stored_name.get(name, name)) in stored}


def _within_reason(bound: BoundManifest, view: View) -> list[ExpectedTensor]:
    """Expected tensors, with absurd layer counts cut to what the checkpoint could hold (the gap is still reported)."""
    total = sum(expand.size(e) for e in bound.expected)
    if total <= 4 * len(view.tensors) + _SURPLUS:
        return list(bound.expected)
    most = len(view.tensors) + 1
    return [
        replace(e, layers=e.layers[:most], counts=tuple((a, min(n, most)) for a, n in e.counts)) for e in bound.expected
    ]


def _renamed(
    view: View, known: set[str], base_prefix: str
) -> tuple[dict[str, TensorHeader], dict[str, str], list[Any]]:
    stored = view.tensors
    if stored.keys() <= known:
        return stored, view.stored, []
    names, renames = canonical(stored, known, base_prefix)
    if not renames:
        return stored, view.stored, []
    tensors = {names[key]: header for key, header in stored.items()}
    where = {name: view.stored.get(key, key) for key, name in names.items()}
    return tensors, {name: key for name, key in where.items() if key != name}, renames


def _bind(
    e: ExpectedTensor, keys: list[str], tensors: dict[str, TensorHeader], opaque: set[str], claimed: set[str]
) -> TemplateBinding:
    """One template. The loop runs once per stored tensor: it stays short."""
    found, example = 0, None
    missing: list[str] = []
    misshapen: list[Misshapen] = []
    shape, exact = e.shape, None not in e.shape
    sized = not e.unsized
    get = tensors.get
    for key in keys:
        header = get(key)
        if header is None:
            missing.append(key)
            continue
        if header.shape != shape and sized and key not in opaque and (exact or not _fits(shape, header.shape)):
            misshapen.append(Misshapen(key, shape, header.shape))
        found += 1
        claimed.add(key)
        if example is None:
            example = key
    if e.optional or e.derived or e.ignored or (e.tied is not None and e.tied.value):
        missing = []
    return TemplateBinding(e, found, example, tuple(missing), tuple(misshapen))


def _fits(expected: tuple[int | None, ...], found: tuple[int, ...]) -> bool:
    return len(expected) == len(found) and all(a is None or a == b for a, b in zip(expected, found, strict=True))


def _foreign(bound: BoundManifest, unexpected: Iterable[str]) -> dict[str, str]:
    """Unexpected keys that are parts of the family which the named class does not have."""
    left = set(unexpected)
    if not left:
        return {}
    return {key: e.owner for e in bound.foreign for key in expand.keys(e) if key in left}


# -- layers -----------------------------------------------------------------------------------------------------------


def heads_of(bound: BoundManifest, stack: str) -> tuple[str, ...]:
    """The texts that stand before the layer number in the keys of a stack."""
    heads = (expand.before_layer(e.template) for e in bound.expected if e.stack == stack)
    return tuple(dict.fromkeys(h for h in heads if h is not None))


def layers_seen(heads: Iterable[str], keys: Iterable[str]) -> set[int]:
    """Layer numbers that occur behind any of `heads`."""
    heads = tuple(heads)
    seen: set[int] = set()
    for key in keys:
        if key.startswith(heads):
            for head in heads:
                number = expand.layer_of(key, head)
                if number is not None:
                    seen.add(number)
    return seen


def _gaps(
    bound: BoundManifest, templates: list[TemplateBinding], tensors: Mapping[str, TensorHeader], unexpected: set[str]
) -> list[LayerGap]:
    """Stacks that hold fewer or more layers than the config says: layers wholly absent, or past the last."""
    spans = {s.name: s for s in bound.spans}
    gaps: list[LayerGap] = []
    for name, span in spans.items():
        mine = [t for t in templates if t.expected.stack == name and t.expected.layers]
        if span.ignored or span.stored is None or not (unexpected or any(t.missing for t in mine)):
            continue
        heads = heads_of(bound, name)
        if not heads:
            continue
        seen = layers_seen(heads, tensors)
        expected = set(range(span.first, span.first + span.stored))
        others = {n for s in spans.values() if s is not span and heads_of(bound, s.name) == heads for n in _span(s)}
        absent, surplus = expected - seen, seen - expected - others
        if seen and (absent or surplus):
            gaps.append(
                LayerGap(
                    name, span.stored, len(seen - others), tuple(sorted(absent)), tuple(sorted(surplus)), span.source
                )
            )
    return gaps


def _span(span: StackSpan) -> range:
    return range(span.first, span.first + (span.stored or 0))


def _without_gaps(
    bound: BoundManifest, templates: list[TemplateBinding], unexpected: set[str], gaps: list[LayerGap]
) -> tuple[list[TemplateBinding], set[str]]:
    """A layer that is missing or surplus as a whole is one finding: its keys are not listed again one by one."""
    for gap in gaps:
        absent, surplus, heads = set(gap.absent), set(gap.surplus), heads_of(bound, gap.stack)
        unexpected = {k for k in unexpected if not any(expand.layer_of(k, h) in surplus for h in heads)}
        templates = [
            replace(t, missing=tuple(k for k in t.missing if not _in_layers(k, heads, absent)))
            if t.expected.stack == gap.stack and t.missing
            else t
            for t in templates
        ]
    return templates, unexpected


def _in_layers(key: str, heads: tuple[str, ...], layers: set[int]) -> bool:
    return any(expand.layer_of(key, head) in layers for head in heads)
