"""Quantised weights against a manifest: which way round they lie, and projections that were left in plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from blockaudit.checkpoint.quantization.skips import skips
from blockaudit.checkpoint.quantization.view import View
from blockaudit.reconcile import expand
from blockaudit.records.binding import TemplateBinding
from blockaudit.records.bound import ExpectedTensor
from blockaudit.records.checkpoint import TensorHeader
from blockaudit.records.quantised import Misfit, Quantised, QuantisedWeight

# Roles of a branch's matrices that every quantiser converts; a router, by contrast, is left alone without a word.
_PROJECTIONS = ("q", "k", "v", "o", "qkv", "kv", "up", "down", "gate_up")


def turned(
    tensors: dict[str, TensorHeader],
    weights: Mapping[str, QuantisedWeight],
    expanded: Sequence[tuple[ExpectedTensor, list[str]]],
) -> dict[str, TensorHeader]:
    """Quantised weights of layers that store [in, out] (GPT-2's Conv1D) turned: quantisers store all as [out, in]."""
    keys = {k for e, keys in expanded if e.layout == "in_out" and len(e.shape) == 2 for k in keys if k in weights}
    if not keys:
        return tensors
    return {k: replace(h, shape=h.shape[::-1]) if k in keys else h for k, h in tensors.items()}


def left_plain(
    view: View,
    weights: Mapping[str, QuantisedWeight],
    templates: Sequence[TemplateBinding],
    tensors: Mapping[str, TensorHeader],
    stored_name: Mapping[str, str],
) -> Quantised:
    """With a misfit for every projection that is stored plain among quantised ones, unless config leaves it out."""
    found, listed = view.quantised, skips(view.declared)
    misfits: list[Misfit] = []
    weights = {name: weight for name, weight in weights.items() if weight.scheme != "unknown"}
    partly = {t.expected.owner for t in templates if t.found and any(k in weights for k in expand.keys(t.expected))}
    for t in templates if weights else ():
        e = t.expected
        if e.owner not in partly or e.what != "branch" or e.role.rpartition(".")[2] not in _PROJECTIONS:
            continue
        for key in (k for k in expand.keys(e) if k in tensors and k not in weights):
            # Lists name modules as the checkpoint does, or as the class does.
            said = {listed.leaves_out(k.rpartition(".")[0]) for k in (key, stored_name.get(key, key))}
            if said == {False}:
                evidence = "config.json: quantization_config"
                misfits.append(Misfit("plain weights among quantised ones", key, found.scheme, "plain", evidence))
    return replace(found, misfits=(*found.misfits, *misfits)) if misfits else found
