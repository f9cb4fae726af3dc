"""Maps that a person or a program got wrong, made of those of the library by a few random edits."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blockaudit import resources

WORDS: list[Any] = [
    "{l}", "{e}", "{*}", "{r}", "{n_layers+1}", "{x y}", "{}", "{{l}}", "transpose", "qkv", "n_heads", "nope", "1/0",
    "d_model ** 99", "", None, True, 0, -1, 1, 3, 10**20, 1.5, [], {}, "model.norm.weight", "F32", "zeros", "axes",
]  # fmt: skip
OPERATIONS: list[dict[str, Any]] = [
    {"op": "transpose"},
    {"op": "transpose", "dims": [0, 5]},
    {"op": "transpose", "at": 5},
    {"op": "split", "dim": 0},
    {"op": "split", "dim": 1, "sizes": [1, 2]},
    {"op": "split", "axis": "l"},
    {"op": "split", "layout": "per_head", "heads": "n_heads", "kv_heads": "n_kv"},
    {"op": "concat"},
    {"op": "concat", "dim": 7},
    {"op": "concat", "layout": "qkv", "heads": 0},
    {"op": "stack"},
    {"op": "stack", "axis": "e"},
    {"op": "unstack"},
    {"op": "unstack", "axis": "q", "count": "n_heads"},
    {"op": "replicated"},
    {"op": "permute_rope", "heads": 3},
    {"op": "permute_rope", "heads": "n_heads", "rotary_dim": 5},
    {"op": "slice", "stop": 2},
    {"op": "slice", "stop": "vocab // 2", "why": "a test"},
    {"op": "pad", "size": 99999999},
    {"op": "add", "value": 1},
    {"op": "scale", "value": "n_heads - n_heads"},
    {"op": "scale", "value": 0},
    {"op": "fold"},
    {"op": "fold", "dim": 9},
    {"op": "cast", "dtype": "bfloat16"},
    {"op": "cast", "dtype": "zzz"},
]
_Where = tuple[str | int, ...]


def mutated(rng: random.Random) -> dict[str, Any]:
    """A map of the library after one to four edits."""
    map_ = json.loads(Path(resources.map_path(rng.choice(resources.map_ids()))).read_text(encoding="utf-8"))
    for _ in range(rng.randint(1, 4)):
        rng.choice((_lost, _replaced, _copied, _operated, _shuffled))(map_, rng)
    return map_


def _places(value: Any, at: _Where = ()) -> Iterator[_Where]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield (*at, key)
        yield from _places(below, (*at, key))


def _at(value: Any, where: _Where) -> Any:
    for key in where:
        value = value[key]
    return value


def _some(map_: Any, rng: random.Random) -> tuple[Any, str | int]:
    *above, last = rng.choice([*_places(map_)] or [("name",)])
    return _at(map_, tuple(above)), last


def _rules(map_: Any) -> list[Any]:
    rules: Any = map_.get("rules")
    return rules if isinstance(rules, list) else []


def _lost(map_: Any, rng: random.Random) -> None:
    parent, key = _some(map_, rng)
    if isinstance(parent, list) or key in parent:
        del parent[key]


def _replaced(map_: Any, rng: random.Random) -> None:
    parent, key = _some(map_, rng)
    parent[key] = copy.deepcopy(rng.choice(WORDS))


def _copied(map_: Any, rng: random.Random) -> None:
    (parent, key), (other, from_) = _some(map_, rng), _some(map_, rng)
    if isinstance(other, list) or from_ in other:
        parent[key] = copy.deepcopy(other[from_])


def _operated(map_: Any, rng: random.Random) -> None:
    rules = _rules(map_)
    rule = rng.choice(rules) if rules else None
    if isinstance(rule, dict) and isinstance(rule.setdefault("ops", []), list):
        rule["ops"].insert(rng.randint(0, len(rule["ops"])), copy.deepcopy(rng.choice(OPERATIONS)))


def _shuffled(map_: Any, rng: random.Random) -> None:
    rules = _rules(map_)
    if rules:
        rng.shuffle(rules)
        rules.pop()
