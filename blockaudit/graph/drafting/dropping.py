"""Dropout by owner: read off the training graph, with every key that names one at a probability of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockaudit.graph import dropout_fields
from blockaudit.graph.drafting.catalog import Unfit
from blockaudit.graph.drafting.explore import Exploration, own_keys
from blockaudit.graph.drafting.follow import Symbols
from blockaudit.graph.drafting.samples import changed
from blockaudit.graph.training import record_training

_PLAIN = {"granularity": "element", "scaling": "inverted", "schedule": "constant", "position": "before_add"}


def dropouts(
    found: Exploration, configs: Sequence[dict[str, Any]], stacks: Sequence[str], symbols: Symbols
) -> dict[str, Any]:
    """The manifest's `dropout`: owners as these configs show them. Raises Unfit."""
    owners: dict[str, dict[str, Any]] = {}
    for config in configs:
        keys = [k for k in own_keys(config) if "drop" in k and "layer" not in k and type(config[k]) in (int, float)]
        given = {k: round(0.11 + 0.0123 * i, 4) for i, k in enumerate(keys)}
        training = record_training(changed(config, given))
        if training is None:
            raise Unfit("not recorded in train mode, so that its dropouts are not known")
        said = dropout_fields.speak(stacks, training, ())
        _take(owners, {f: s.value for f, s in said.items()}, given, symbols)
    return {o: {k: v for k, v in fields.items() if v != _PLAIN.get(k, object())} for o, fields in owners.items()}


def _take(owners: dict[str, dict[str, Any]], said: dict[str, Any], given: dict[str, float], symbols: Symbols) -> None:
    for field, value in said.items():
        _, _, rest = field.partition(".dropout.")
        owner, _, name = rest.partition(".")
        if owner == "stack_output":
            continue  # no owner of a manifest: those made by hand are silent of it too
        if owner == "unclassified":
            raise Unfit(f"dropouts of no owner: {value}")
        if isinstance(value, list):
            raise Unfit(f"dropout of {owner} differs between layers")
        shown = _bound(value, given, symbols) if name == "p" else value
        if owners.setdefault(owner, {}).setdefault(name, shown) != shown:
            raise Unfit(f"dropout of {owner} differs between stacks")


def _bound(p: Any, given: dict[str, float], symbols: Symbols) -> Any:
    """The key that has this probability, else the probability."""
    for key, value in given.items():
        if isinstance(p, float) and abs(p - value) < 1e-6 and key in symbols.by_key:
            return symbols.bound(symbols.by_key[key])
    return p
