"""The two witnesses that need no execution: what the manifest declares, and what the checkpoint's files store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from blockaudit.reconcile.dims import Solved
from blockaudit.reconcile.match import heads_of, layers_seen
from blockaudit.reconcile.norms import NormVectors, offset_by_statistics
from blockaudit.reconcile.ties import Tie
from blockaudit.records.binding import Binding, TemplateBinding
from blockaudit.records.bound import BoundManifest, Resolved
from blockaudit.records.contract import Statement, Testimony
from blockaudit.records.quantised import Quantised

_HEADERS = "tensor headers"


def declared(bound: BoundManifest, quantised: Quantised) -> Testimony:
    """Every field of the manifest, and the dimensions that some shape depends on."""
    # A dimension that was read off the headers for want of a config is not declared.
    said = {name: _statement(value) for name, value in bound.fields.items() if not (value.headers and not value.keys)}
    used = {s for e in bound.expected for text in e.symbols for s in bound.dims if s in text}
    for name, value in bound.dims.items():
        if name in used and isinstance(value.value, int) and not value.headers:
            said[f"dims.{name}"] = _statement(value)
    if quantised.opaque:
        # The field is named so that nobody takes the shapes of these weights for checked.
        said["quantization.logical_shapes"] = Statement(None, quantised.scheme, "", known=False)
    return Testimony("declared", said)


def stored(
    live: BoundManifest,
    bound: BoundManifest,
    binding: Binding,
    solved: Mapping[str, Solved],
    norms: NormVectors,
    ties: Iterable[Tie],
) -> Testimony:
    """What config.json says now (`live`), overlaid with what headers and norm vectors show."""
    said = {name: _statement(value) for name, value in live.fields.items() if value.keys and not value.pinned}
    for name, statement in _headers(bound, binding).items():
        config = live.fields.get(name)
        # Keys show that a norm is stored, not where it is run: a config that now places it elsewhere is heard first.
        moved = config is not None and config.known and name.endswith(".present") and config != bound.fields.get(name)
        if not moved or name not in said:
            said[name] = statement
    for name, found in solved.items():
        if f"dims.{name}" not in said and name in bound.dims:
            said[f"dims.{name}"] = Statement(found.value, found.evidence, _HEADERS)
    said |= _ties(ties)
    said |= _offsets(bound, norms)
    return Testimony("stored", said)


def _statement(value: Resolved) -> Statement:
    return Statement(value.value, value.evidence, value.bytes_read, value.known)


def _headers(bound: BoundManifest, binding: Binding) -> dict[str, Statement]:
    """What keys and shapes show: norms and biases that are there, and how many layers."""
    return {
        **_projections(bound, binding),
        **_norms(binding),
        **_layers(bound, binding),
        **_no_final_norm(bound, binding),
    }


def _projections(bound: BoundManifest, binding: Binding) -> dict[str, Statement]:
    said: dict[str, Statement] = {}
    for t in binding.templates:
        name = f"{t.expected.owner}.bias.{t.expected.role}"
        if t.expected.what == "branch" and t.expected.template.endswith(".weight") and name in bound.fields and t.found:
            said[name] = _bias(t, binding)
    return said


def _norms(binding: Binding) -> dict[str, Statement]:
    said: dict[str, Statement] = {}
    weights: dict[str, list[TemplateBinding]] = {}
    for t in binding.templates:
        if t.expected.what == "norm" and t.expected.role == "weight" and not t.expected.ignored:
            weights.setdefault(t.expected.owner, []).append(t)
    for owner, templates in weights.items():
        found = next((t for t in templates if t.found), None)
        said[f"{owner}.present"] = Statement(found is not None, _where(templates), _HEADERS)
        if found is not None:
            said[f"{owner}.bias"] = _bias(found, binding)
            if _is_scalar(found, binding):
                said[f"{owner}.scale"] = Statement("scalar", found.example or "", _HEADERS)
    return said


def _layers(bound: BoundManifest, binding: Binding) -> dict[str, Statement]:
    """Stored layers, where the stack stores as many as it runs (ALBERT's one group says nothing of its depth)."""
    said: dict[str, Statement] = {}
    for span in bound.spans:
        heads = heads_of(bound, span.name)
        if span.ignored or not heads or span.stored != span.run:
            continue
        gap = next((g for g in binding.gaps if g.stack == span.name), None)
        count = gap.stored if gap else span.stored
        if count is None:
            count = len(layers_seen(heads, binding.tensors))
        said[f"{span.name}.layers"] = Statement(count, f"layer numbers behind {heads[0]}", _HEADERS)
    return said


def _no_final_norm(bound: BoundManifest, binding: Binding) -> dict[str, Statement]:
    """Where no final norm is declared, whether one is stored all the same."""
    said: dict[str, Statement] = {}
    for stack in bound.manifest.stacks:
        field = bound.fields.get(f"{stack.name}.final_norm.present")
        if field is not None and field.known and not field.value:
            found = final_norm_like(bound, binding)
            evidence = found[0] if found else "no such key"
            said[f"{stack.name}.final_norm.present"] = Statement(bool(found), evidence, _HEADERS)
    return said


def final_norm_like(bound: BoundManifest, binding: Binding) -> list[str]:
    """Unexpected one-dimensional tensors outside the layers whose name is a norm's."""
    heads = tuple(h for s in bound.spans for h in heads_of(bound, s.name))
    return [
        key
        for key in binding.unexpected
        if not key.startswith(heads) and len(binding.tensors[key].shape) == 1 and is_norm_name(key)
    ]


def is_norm_name(key: str) -> bool:
    """Whether a key names a norm's parameter. Names may say that a norm is there; never where it stands."""
    module, _, parameter = key.rpartition(".")
    last = module.rpartition(".")[2].lower()
    return parameter in ("weight", "bias", "scale", "gamma", "beta") and (
        "norm" in last or last.startswith("ln") or last.endswith("_ln")
    )


def _bias(t: TemplateBinding, binding: Binding) -> Statement:
    """Whether the module of this weight has a bias beside it: by one key that is there, of any layer."""
    stem = t.expected.template.removesuffix("weight")
    example = (t.example or "").removesuffix("weight")
    twin = next((b for b in binding.templates if b.expected.template == f"{stem}bias"), None)
    if twin is not None:
        return Statement(twin.found > 0, twin.example or f"no {stem}bias", _HEADERS)
    key = f"{example}bias"
    return Statement(key in binding.tensors, key if key in binding.tensors else f"no {stem}bias", _HEADERS)


def _is_scalar(t: TemplateBinding, binding: Binding) -> bool:
    header = binding.tensors.get(t.example or "")
    return header is not None and header.shape in ((), (1,))


def _where(templates: list[TemplateBinding]) -> str:
    found = next((t.example for t in templates if t.example), None)
    return found or f"no {templates[0].expected.template}"


def _ties(ties: Iterable[Tie]) -> dict[str, Statement]:
    said: dict[str, Statement] = {}
    for tie in ties:
        if tie.key_stored and tie.equal is None and tie.declared:
            continue
        tied = not tie.key_stored or bool(tie.equal)
        if not tie.key_stored:
            evidence = f"{tie.key} is not stored"
        else:
            evidence = f"{tie.compared} of {tie.key} and {tie.source}" if tie.compared else f"{tie.key} is stored"
        said[f"tie.{tie.key}"] = Statement(tied, evidence, _HEADERS)
    return said


def _offsets(bound: BoundManifest, norms: NormVectors) -> dict[str, Statement]:
    """Statistics speak only where they contradict the manifest: agreeing with it they would prove nothing."""
    said: dict[str, Statement] = {}
    weights = {k: s for k, s in norms.weights().items() if f"{norms.owner[k]}.scale_offset" in bound.fields}
    offset = offset_by_statistics(weights.values())
    if offset is None:
        return said
    means = [s.mean for s in weights.values()]
    evidence = f"statistics of {len(means)} norm vectors: means between {min(means):.3g} and {max(means):.3g}"
    for owner in dict.fromkeys(norms.owner[k] for k in weights):
        field = bound.fields[f"{owner}.scale_offset"]
        if field.known and field.value != offset:
            said[f"{owner}.scale_offset"] = Statement(offset, evidence, "norm vectors")
    return said
