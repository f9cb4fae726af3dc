"""Mistakes that people make in a map, made in any map: each at every place where it can be made.

A mistake is a function from a map (as JSON) to (place, faulty map) pairs, with the rules that may name it. Which keys
are norms, matrices and biases is read off the target's manifest, never off their names. Optional rules are left alone:
the source that a map is proved on without one need not have what they take.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

from blockaudit import resources
from blockaudit.manifest import grammar
from blockaudit.manifest.bind import bind, classes
from blockaudit.manifest.load import load as load_manifest
from blockaudit.records.bound import ExpectedTensor
from blockaudit.records.manifest import Bound

Map = dict[str, Any]
Faulty = Iterator[tuple[str, Map]]
LIBRARY = resources.map_ids()


@cache
def _read(name: str) -> str:
    return resources.map_path(name).read_text(encoding="utf-8")


def library(name: str) -> Map:
    """A map of the library, a copy to be spoilt."""
    return json.loads(_read(name))


@cache
def expected(manifest: str) -> dict[str, ExpectedTensor]:
    """Template -> what the manifest expects there, in any class of its family."""
    loaded = load_manifest(manifest).manifest
    bounds = [bind(loaded, {"architectures": [c]} if c else {}, class_name=c) for c in classes(loaded) or [None]]
    return {tensor.template: tensor for bound in bounds for tensor in bound.expected}


def _listed(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _slot(map_: Map, template: str) -> ExpectedTensor | None:
    return expected(map_["target"]).get(template)


def _changed(map_: Map, number: int, **changes: Any) -> Map:
    """The map with fields of one rule replaced."""
    found = copy.deepcopy(map_)
    found["rules"][number].update(changes)
    return found


def _ops(rule: Map) -> list[Map]:
    return rule.get("ops", [])


def _plain(rule: Map) -> bool:
    """A rule of one tensor for one, that every model of the family has."""
    return isinstance(rule["from"], str) and isinstance(rule["to"], str) and not rule.get("optional")


def _pairs(map_: Map, wanted: Callable[[Map], bool]) -> Iterator[tuple[int, int]]:
    """Two rules after one another that stand for as many tensors and do the same to them."""
    rules = map_["rules"]
    numbers = [n for n, rule in enumerate(rules) if _plain(rule) and wanted(rule)]
    for n, m in pairwise(numbers):
        alike = all(rules[n]["to"].count(axis) == rules[m]["to"].count(axis) for axis in ("{l}", "{e}", "{*}"))
        if alike and _ops(rules[n]) == _ops(rules[m]):
            yield n, m


# -- keys -------------------------------------------------------------------------------------------------------------


def forgotten(map_: Map) -> Faulty:
    """A rule is not there. Of a key that an alias speaks for, that is another mistake."""
    spoken = {pair[0] for pair in map_.get("alias", [])}
    for n, rule in enumerate(map_["rules"]):
        if not rule.get("optional") and spoken.isdisjoint(_listed(rule["to"])):
            found = copy.deepcopy(map_)
            del found["rules"][n]
            yield f"rules[{n}]", found


def used_twice(map_: Map) -> Faulty:
    """A rule takes what another takes, and its own source is left over."""
    for n, m in _pairs(map_, lambda rule: True):
        yield f"rules[{m}].from", _changed(map_, m, **{"from": map_["rules"][n]["from"]})


def fed_twice(map_: Map) -> Faulty:
    """A rule feeds what another feeds."""
    for n, m in _pairs(map_, lambda rule: True):
        yield f"rules[{m}].to", _changed(map_, m, to=map_["rules"][n]["to"])


def written_twice(map_: Map) -> Faulty:
    """A rule stands there twice."""
    for n, rule in enumerate(map_["rules"]):
        if not rule.get("optional"):
            found = copy.deepcopy(map_)
            found["rules"].append(found["rules"][n])
            yield f"rules[{n}]", found


# -- layouts ----------------------------------------------------------------------------------------------------------


def transpose_left_out(map_: Map) -> Faulty:
    """The transpose of a rule, square or not, is not there."""
    for n, rule in enumerate(map_["rules"]):
        if any(op["op"] == "transpose" for op in _ops(rule)) and not rule.get("optional"):
            yield f"rules[{n}].ops", _changed(map_, n, ops=[op for op in _ops(rule) if op["op"] != "transpose"])


def transposed_once_more(map_: Map) -> Faulty:
    """A projection that lies as the target has it is transposed."""
    for n, rule in enumerate(map_["rules"]):
        slots = [_slot(map_, template) for template in _listed(rule["to"])]
        matrices = all(s is not None and len(s.symbols) == 2 and s.what == "branch" for s in slots)
        if matrices and not any(op["op"] in ("transpose", "stack", "unstack") for op in _ops(rule)):
            yield f"rules[{n}].ops", _changed(map_, n, ops=[*_ops(rule), {"op": "transpose"}])


def other_order(map_: Map) -> Faulty:
    """q, k and v, or gate and up, are listed in another order than they lie in."""
    for n, rule in enumerate(map_["rules"]):
        for side in ("to", "from"):
            parts = _listed(rule[side])
            cut = any(op["op"] in ("split", "concat") and "axis" not in op for op in _ops(rule))
            if len(parts) > 1 and cut:
                yield f"rules[{n}].{side}", _changed(map_, n, **{side: [*parts[1:], parts[0]]})


def other_layout(map_: Map) -> Faulty:
    """The rows of a fused projection are said to lie otherwise."""
    other = {"qkv": "per_group", "per_head": "qkv", "per_group": "qkv"}
    for n, rule in enumerate(map_["rules"]):
        for place, op in enumerate(_ops(rule)):
            if "layout" in op:
                ops = copy.deepcopy(_ops(rule))
                ops[place]["layout"] = other[op["layout"]]
                yield f"rules[{n}].ops[{place}].layout", _changed(map_, n, ops=ops)


def rope_left_out(map_: Map) -> Faulty:
    """The rows of q or k keep the pairing of the source."""
    for n, rule in enumerate(map_["rules"]):
        if any(op["op"] == "permute_rope" for op in _ops(rule)):
            yield f"rules[{n}].ops", _changed(map_, n, ops=[op for op in _ops(rule) if op["op"] != "permute_rope"])


def rope_in_other_heads(map_: Map) -> Faulty:
    """The rows of q or k are permuted with another head count."""
    for n, rule in enumerate(map_["rules"]):
        for place, op in enumerate(_ops(rule)):
            if op["op"] == "permute_rope":
                for heads in (f"{op['heads']} // 2", f"2 * {op['heads']}", 1):
                    ops = copy.deepcopy(_ops(rule))
                    ops[place]["heads"] = heads
                    yield f"rules[{n}].ops[{place}].heads: {heads}", _changed(map_, n, ops=ops)


def other_role(map_: Map) -> Faulty:
    """Two projections of one shape feed each other's key."""
    for n, m in _pairs(map_, lambda rule: (s := _slot(map_, rule["to"])) is not None and s.what == "branch"):
        found = _changed(map_, n, to=map_["rules"][m]["to"])
        found["rules"][m]["to"] = map_["rules"][n]["to"]
        yield f"rules[{n}], rules[{m}]", found


# -- norms ------------------------------------------------------------------------------------------------------------


def _gain(map_: Map, rule: Map) -> bool:
    slots = [_slot(map_, template) for template in _listed(rule["to"])]
    return all(s is not None and s.what == "norm" and s.role == "weight" for s in slots)


def norm_swapped(map_: Map) -> Faulty:
    """Two norms feed each other's gain."""
    for n, m in _pairs(map_, lambda rule: _gain(map_, rule)):
        found = _changed(map_, n, to=map_["rules"][m]["to"])
        found["rules"][m]["to"] = map_["rules"][n]["to"]
        yield f"rules[{n}], rules[{m}]", found


def folded_twice(map_: Map) -> Faulty:
    """One is added to a gain that both sides read alike, or once more to one that they do not."""
    for n, rule in enumerate(map_["rules"]):
        if _plain(rule) and _gain(map_, rule):
            more = next((op for op in _ops(rule) if op["op"] == "add"), {"op": "add", "value": 1.0})
            yield f"rules[{n}].ops", _changed(map_, n, ops=[*_ops(rule), more])


def invented(map_: Map) -> Faulty:
    """A norm's gain or bias is made up, in place of the source's."""
    for n, rule in enumerate(map_["rules"]):
        slot = _slot(map_, rule["to"]) if _plain(rule) else None
        if slot is not None and slot.what == "norm":
            found = copy.deepcopy(map_)
            del found["rules"][n]
            value = "zeros" if slot.role == "bias" else "ones"
            found.setdefault("init", []).append({"key": rule["to"], "value": value, "why": "the source has none"})
            found.setdefault("drop", []).append({"key": rule["from"], "why": "made anew"})
            yield f"init: {rule['to']}", found


# -- ties and config --------------------------------------------------------------------------------------------------


def alias_lost(map_: Map) -> Faulty:
    """No alias is declared."""
    if map_.get("alias"):
        yield "alias", {**copy.deepcopy(map_), "alias": []}


def _keys(value: Any) -> list[str]:
    """The config keys that a value of a manifest is read from."""
    if not isinstance(value, Bound) or value.config is None:
        return []
    return [value.config] if isinstance(value.config, str) else list(value.config)


def epsilon_lost(map_: Map) -> Faulty:
    """The source's config has an epsilon of its own, and the map leaves it behind."""
    keys = _keys(load_manifest(map_["source"]).manifest.norm.epsilon)
    if keys:
        yield f"config.{keys[0]}", _lost(map_, keys, 3.7e-4)


def theta_lost(map_: Map) -> Faulty:
    """The source's config has a rotary base of its own, and the map leaves it behind."""
    stacks = load_manifest(map_["source"]).manifest.stacks
    attention = [branch.attention for stack in stacks for branch in stack.branches if branch.attention is not None]
    keys = [_keys(a.rotary.theta) for a in attention if a.rotary is not None]
    if keys and keys[0]:
        yield f"config.{keys[0][0]}", _lost(map_, keys[0], 31337.0)


def _lost(map_: Map, keys: list[str], value: float) -> Map:
    """The map without a config key. What the way back writes is what the source of the way there is thought to hold."""
    found = copy.deepcopy(map_)
    found["supply_back"] = {**found.get("supply_back", {}), keys[0]: value}
    found["config"] = {**found.get("config", {}), **dict.fromkeys(keys)}
    found["supply"] = {k: v for k, v in found.get("supply", {}).items() if not _reads(v, keys)}
    return found


def _reads(supplied: Any, keys: list[str]) -> bool:
    """Whether what is supplied is worked out from one of these keys."""
    text = supplied.get("expr") if isinstance(supplied, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return isinstance(text, str) and not set(keys).isdisjoint(grammar.symbols(text))


def holding(map_: Map, faulty: Map) -> Map:
    """The sound map, with what `_lost` had the source hold: it must pass."""
    return {**copy.deepcopy(map_), **({"supply_back": faulty["supply_back"]} if "supply_back" in faulty else {})}


# Each with the rules of which at least one has to name it.
MISTAKES: dict[str, tuple[Callable[[Map], Faulty], frozenset[str]]] = {
    "a key forgotten": (forgotten, frozenset({"map-not-total"})),
    "a key used twice": (used_twice, frozenset({"map-not-injective"})),
    "a key fed twice": (fed_twice, frozenset({"map-not-injective"})),
    "a rule written twice": (written_twice, frozenset({"map-not-injective"})),
    "a transpose left out": (transpose_left_out, frozenset({"map-undeclared-transpose"})),
    "a transpose too many": (transposed_once_more, frozenset({"map-undeclared-transpose"})),
    "q, k, v in another order": (other_order, frozenset({"map-undeclared-layout"})),
    "another fused layout": (other_layout, frozenset({"map-undeclared-layout"})),
    "the RoPE permutation left out": (rope_left_out, frozenset({"map-undeclared-layout"})),
    "the RoPE permutation in other heads": (
        rope_in_other_heads,
        frozenset({"map-undeclared-layout", "map-shape-mismatch"}),
    ),
    "another projection": (
        other_role,
        frozenset({"map-role-swapped", "map-undeclared-layout", "map-shape-mismatch", "map-undeclared-transpose"}),
    ),
    "1 + weight twice": (folded_twice, frozenset({"scale-offset-mismatch"})),
    "a norm swapped": (norm_swapped, frozenset({"map-norm-swapped"})),
    "a norm's tensor invented": (invented, frozenset({"map-invents-state"})),
    "an alias lost": (alias_lost, frozenset({"map-alias-lost"})),
    "an epsilon lost": (epsilon_lost, frozenset({"map-config-lost"})),
    "a rotary base lost": (theta_lost, frozenset({"map-config-lost"})),
}
