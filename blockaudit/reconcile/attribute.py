"""Which contract field an unexpected or a missing key belongs to, so that one fault is named by one rule."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec.structs import replace

from blockaudit.reconcile import expand
from blockaudit.reconcile.audit import Audit, Reconciled
from blockaudit.reconcile.inside import is_beside
from blockaudit.reconcile.match import heads_of
from blockaudit.reconcile.testimony import is_norm_name
from blockaudit.records.binding import TemplateBinding
from blockaudit.records.bound import ExpectedTensor

Place = Literal[
    "norm_bias", "branch_bias", "qk_norm", "norm", "final_norm", "branch", "derived", "transient", "other"
]  # fmt: skip
# Buffers that code computes for itself, by the last part of their name, whatever the family.
DERIVED = ("inv_freq", "masked_bias", "_extra_state", "position_ids")
# State of one forward pass or one request, by the last part of a name: caches, score routes, masks, generators.
_TRANSIENT = re.compile(
    r"(past|prev|previous|cached)_(k|v|kv|keys?|values?|key_values?|scores?|attn|attention)"
    r"|(k|v|kv|key|value|attn|attention)_cache|cache_(k|v|kv|key|value)"
    r"|(attn|attention|residual)_(scores|probs)|((attn|attention|hidden|residual)_)?drop(out)?_mask"
    r"|((cpu|cuda|dropout|torch|numpy)_)?rng_states?"
)
_QK = ("q_", "k_", "query_", "key_", "qk_")
# A branch that a decoder-only stack does not have is named for what it reads.
_CROSS = ("cross", "encoder_attn", "encdec")


class Stranger(msgspec.Struct, frozen=True):
    """A group of unexpected keys of one spelling: where they belong, and the contract subject, if any."""

    place: Place
    subject: str
    spelling: str
    keys: tuple[str, ...]
    shape: tuple[int, ...]  # of the first
    beside: bool  # outside the text stack of a larger model: not covered, and no fault of the stack's


def strangers(audit: Audit) -> tuple[Stranger, ...]:
    """Unexpected keys, grouped by spelling with numbers replaced; none where the key set means nothing."""
    reconciled = audit.reconciled
    if reconciled is None or not audit.keys_known or not reconciled.binding.unexpected:
        return ()
    binding, wrong = reconciled.binding, wrong_counts(reconciled)
    owners = _owners(reconciled, binding.unexpected)
    heads = tuple(h for s in reconciled.declared.spans for h in heads_of(reconciled.declared, s.name))
    found: list[Stranger] = []
    for spelling, keys in expand.templates_of(binding.unexpected):
        keys = [k for k in keys if not _counted(k, reconciled, wrong)]
        if not keys:
            continue
        beside = audit.nested and is_beside(reconciled, keys[0])
        place, subject = ("other", None) if beside else _place(keys[0], owners, heads, reconciled)
        shape = binding.tensors[keys[0]].shape
        found.append(Stranger(place, subject or spelling, spelling, tuple(keys), shape, beside))
    return tuple(found)


def _owners(reconciled: Reconciled, unexpected: Iterable[str]) -> dict[str, TemplateBinding]:
    """Bound templates of the weights that unexpected biases stand beside."""
    wanted = {key.removesuffix("bias") + "weight" for key in unexpected if key.endswith(".bias")}
    if not wanted:
        return {}
    return {k: t for t in reconciled.binding.templates for k in expand.keys(t.expected) if k in wanted}


def _place(
    key: str, owners: dict[str, TemplateBinding], heads: tuple[str, ...], reconciled: Reconciled
) -> tuple[Place, str | None]:
    beside = owners.get(key.removesuffix("bias") + "weight") if key.endswith(".bias") else None
    if beside is not None:
        owner = beside.expected.owner
        if beside.expected.what == "norm":
            return "norm_bias", owner
        if beside.expected.what == "branch":
            return "branch_bias", f"{owner}.bias.{beside.expected.role}"
    if key.rpartition(".")[2] in DERIVED:
        return "derived", None
    if _TRANSIENT.fullmatch(key.rpartition(".")[2].lower()):
        return "transient", None
    inside = key.startswith(heads) if heads else False
    if is_norm_name(key):
        last = key.rpartition(".")[0].rpartition(".")[2].lower()
        if last.startswith(_QK) or last in ("q", "k", "qk"):
            return "qk_norm", None
        if len(reconciled.binding.tensors[key].shape) <= 1 and not any(c in key.lower() for c in _CROSS):
            return ("norm", None) if inside else ("final_norm", None)
    if inside and any(c in key.lower() for c in _CROSS):
        return "branch", None
    return "other", None


def missing(audit: Audit) -> Iterable[tuple[Place, TemplateBinding]]:
    """Templates with missing keys, and the place in the contract that each belongs to."""
    reconciled = audit.reconciled
    if reconciled is None or not audit.keys_known:
        return
    wrong = wrong_counts(reconciled)
    gone = {t.expected.owner for t in reconciled.binding.templates if _weight_missing(t)}
    for t in reconciled.binding.templates:
        if wrong and t.missing:
            t = replace(t, missing=tuple(k for k in t.missing if not _past(t.expected, k, wrong, stored=True)))
        if not t.missing:
            continue
        e = t.expected
        if e.what == "norm" and e.role in ("weight", "bias"):
            if e.role == "bias":
                # Where the weight is missing in the same layers the norm is missing, not its bias.
                if e.owner not in gone:
                    yield "norm_bias", t
            elif e.owner.endswith((".inner.q", ".inner.k")):
                yield "qk_norm", t
            else:
                yield ("final_norm" if e.owner.endswith(".final_norm") else "norm"), t
        elif e.what == "bias":
            yield "branch_bias", t
        else:
            yield "other", t


def lost_branches(reconciled: Reconciled) -> dict[str, frozenset[int]]:
    """Branches that have lost every tensor but those of norms, each with the layers in which they have."""
    gone: dict[str, set[int]] = {}
    for t in reconciled.binding.templates:
        e = t.expected
        if e.what == "branch" and e.owner != f"{e.stack}.layer" and not (e.optional or e.derived):
            held = gone.setdefault(e.owner, set(e.layers))
            held &= layers_without(t)
    return {owner: frozenset(layers) for owner, layers in gone.items() if layers}


def layers_without(t: TemplateBinding) -> frozenset[int]:
    """The layers that have no tensor of a template: not one of its experts."""
    head = expand.before_layer(t.expected.template)
    if head is None or not t.missing:
        return frozenset()
    absent = set(t.missing)
    held = {expand.layer_of(k, head) for k in expand.keys(t.expected) if k not in absent}
    return frozenset(t.expected.layers) - held


def wrong_counts(reconciled: Reconciled) -> dict[str, tuple[int, int]]:
    """Axes whose count in config.json is not the stored one (experts): axis -> (declared, stored).

    What is missing or surplus by that count alone is named once, by the count.
    """
    off = {d.symbol: (d.declared, d.found) for d in reconciled.shapes.dimensions}
    for row in reconciled.rows:
        if row.agrees is False and row.field.startswith("dims."):
            off.setdefault(row.field.removeprefix("dims."), (row.value("declared"), row.value("stored")))
    axes = reconciled.declared.manifest.axes
    return {a: off[text] for a, text in axes.items() if text in off and all(isinstance(n, int) for n in off[text])}


def _past(e: ExpectedTensor, key: str, wrong: dict[str, tuple[int, int]], *, stored: bool) -> bool:
    """Whether a key of this template lies past the stored (or the declared) count of an axis."""
    names = list(expand.axes(e))
    hit = expand.pattern(e.template).fullmatch(key)
    return hit is not None and any(
        int(number) >= wrong[name][1 if stored else 0]
        for name, number in zip(names, hit.groups(), strict=True)
        if name in wrong
    )


def _counted(key: str, reconciled: Reconciled, wrong: dict[str, tuple[int, int]]) -> bool:
    return bool(wrong) and any(
        _past(t.expected, key, wrong, stored=False)
        for t in reconciled.binding.templates
        if any(f"{{{a}}}" in t.expected.template for a in wrong)
    )


def _weight_missing(t: TemplateBinding) -> bool:
    return bool(t.missing) and t.expected.what == "norm" and t.expected.role == "weight"
