"""Lists of one entry a layer that config.json may lack: the rule by which the config class makes one."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

from blockaudit.graph.drafting import conditions
from blockaudit.graph.drafting.explore import Exploration, own_keys
from blockaudit.graph.drafting.samples import ABSENT, LAYER_KEYS, changed

_DEFAULTS: tuple[int, ...] = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Rule:
    """A condition over `l`; `legacy` are keys that config.json may have and the class does not keep, with defaults."""

    text: str
    legacy: dict[str, int]


def rule(found: Exploration, key: str, names: Mapping[str, str], entry: Any, *, equal: bool) -> Rule | None:
    """When an implied list has `entry` (or, not `equal`, anything else) at `l`. names: config key -> symbol."""
    legacy = _legacy(found)
    moving = _moving(found, key, legacy)
    if len(moving) > 2 or any(k not in legacy and k not in names for k in moving):
        return None
    made = list(_made(found, key, moving))
    spans = [range(len(entries)) for _, entries in made]
    there = [frozenset(n for n, e in enumerate(entries) if (e == entry) is equal) for _, entries in made]
    symbols = [names.get(k, k) for k in moving]
    unkept = [k for k in moving if k in legacy]
    for chosen in product(*(_same(found, key, k) for k in unkept)):
        defaults = dict(zip(unkept, chosen, strict=True))
        envs = [{names.get(k, k): e.get(k, defaults.get(k)) for k in moving} for e, _ in made]
        text = conditions.of_layers(there, spans, envs, symbols, constants=not moving) if made else None
        if text is not None:
            return Rule(text, defaults)
    return None


def _moving(found: Exploration, key: str, legacy: list[str]) -> list[str]:
    """Keys of small numbers that change the list that the class makes."""
    base = found.base.data
    small = [k for k in own_keys(base) if type(base[k]) is int and base[k] <= 16 and k not in LAYER_KEYS]
    plain = _list(found, key, base)

    def moves(k: str) -> bool:
        made = [_list(found, key, {**base, k: v}) for v in _DEFAULTS]
        return plain is not None and any(m is not None and m[1] != plain[1] for m in made)

    return [k for k in (*legacy, *small) if moves(k)]


def _legacy(found: Exploration) -> list[str]:
    """Keys that the config class takes and does not keep."""
    import transformers

    cls: Any = transformers.CONFIG_MAPPING[found.model_type]
    text = inspect.getsource(sys.modules[cls.__module__])
    keys = dict.fromkeys(re.findall(r"kwargs\.(?:pop|get)\(\s*\"(\w+)\"", text))
    return [k for k in keys if k not in own_keys(found.base.data)]


def _same(found: Exploration, key: str, legacy: str) -> list[int]:
    """Values of a key that give the list that the class makes without it."""
    base = found.base.data
    plain = _list(found, key, base)
    given = [(v, _list(found, key, {**base, legacy: v})) for v in _DEFAULTS]
    return [v for v, made in given if plain is not None and made is not None and made[1] == plain[1]]


def _made(found: Exploration, key: str, moving: list[str]) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """(values of a config, the list that the class makes where it has none), over depths and the keys that move it."""
    deeper = [one for k, many in found.single.items() if k in LAYER_KEYS for one in many]
    for one in (found.base, *deeper[:3]):
        for chosen in product((None, 0, 1, 2, 3), repeat=len(moving)):
            more = {k: v for k, v in zip(moving, chosen, strict=True) if v is not None}
            made = _list(found, key, {**one.data, **more})
            if made is not None:
                yield {**made[0], **more}, made[1]


def _list(found: Exploration, key: str, data: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]] | None:
    """(values of the config, its list) where config.json lacks the list."""
    import transformers

    cls: Any = transformers.CONFIG_MAPPING[found.model_type]
    try:
        config = cls.from_dict(changed(data, {key: ABSENT}))
    except Exception:  # a config class may refuse in any way
        return None
    values = cast("dict[str, Any]", vars(config))
    entries = values.get(key)
    return (values, cast("list[Any]", entries)) if isinstance(entries, list) else None
