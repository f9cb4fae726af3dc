"""Symbols of a manifest: the config key behind each, its default, and what measured values follow of them."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, cast

from blockaudit.graph.drafting import conditions, fit, implied, words
from blockaudit.graph.drafting.catalog import Template, Unfit
from blockaudit.graph.drafting.explore import Exploration, own_keys, without
from blockaudit.graph.drafting.samples import LAYER_KEYS, Sample

# What classes put where a key holds nothing; used only where samples bear it out.
_NOTHING = {"head_dim": ("d_model", "n_heads", "{} // {}"), "num_key_value_heads": ("n_heads", "n_heads", "{}")}


class Symbols:
    """Names for config keys. Only those that some value of the manifest follows are written down."""

    def __init__(self, found: Exploration) -> None:
        import transformers

        self.found = found
        self.keys: dict[str, str] = {}  # symbol -> config key
        self.by_key: dict[str, str] = {}
        self.used: dict[str, None] = {}
        self._envs: dict[int, tuple[Sample, dict[str, Any]]] = {}
        self._bound: dict[str, dict[str, Any]] = {}
        self._learned: dict[str, tuple[str, dict[int, int]]] = {}
        cls: Any = transformers.CONFIG_MAPPING[found.model_type]
        fresh = cls()
        self.defaults = cast("dict[str, Any]", vars(fresh))
        self.aliases = {v: k for k, v in getattr(cls, "attribute_map", {}).items()}
        keys = list(found.effective)
        named = {words.SYMBOLS.get(k, k) for k in keys}
        # The size of a head is derived where no key gives it.
        self._ruled = [k for k in ("head_dim",) if {"d_model", "n_heads"} <= named and k not in keys]
        keys += self._ruled
        keys += [k for k in own_keys(found.base.data) if k not in keys]
        for key in keys:
            if not key.isidentifier() or keyword.iskeyword(key):
                continue
            name = words.symbol(key, set(self.keys))
            self.keys[name], self.by_key[key] = key, name

    def env(self, sample: Sample) -> dict[str, Any]:
        if id(sample) not in self._envs:
            # The sample is kept with its values: its id is its own only while it lives.
            env = self._filled(self.found.env(sample))
            known = {k: sizes[id(sample)] for k, (_, sizes) in self._learned.items() if id(sample) in sizes}
            self._envs[id(sample)] = (sample, env | {self.by_key[k]: v for k, v in known.items()})
        return self._envs[id(sample)][1]

    def _filled(self, values: dict[str, Any]) -> dict[str, Any]:
        """Values by symbol; sizes that hold nothing as the rule for them has it."""
        env = {name: values.get(key) for name, key in self.keys.items()}
        for key, (a, b, text) in _NOTHING.items():
            name = self.by_key.get(key)
            whole, parts = env.get(a), env.get(b)
            if name is not None and env[name] is None and isinstance(whole, int) and isinstance(parts, int):
                env[name] = whole if "//" not in text else whole // parts if parts else None
        return env

    def _rule(self, key: str) -> dict[str, Any] | None:
        """The rule for a key that holds nothing, where a sample has it so."""
        a, b, text = _NOTHING[key]
        if any(self.found.env(s).get(key) is None for s in self.found.samples):
            return {"expr": self.use(text.format(a, b))}
        return None

    @staticmethod
    def _text(key: str) -> str:
        a, b, text = _NOTHING[key]
        return text.format(a, b)

    def names(self, keys: Iterable[str]) -> list[str]:
        return [self.by_key[k] for k in keys if k in self.by_key]

    def use(self, text: str) -> str:
        """The expression, its symbols noted as used."""
        for name in re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'", "", text)):
            if name in self.keys:
                self.used[name] = None
        return text

    def bound(self, name: str) -> dict[str, Any]:
        """`{"config": ..., "default": ...}` of a symbol."""
        if name in self._bound:
            return dict(self._bound[name])
        key = self.keys[name]
        if key in self._ruled:
            self._bound[name] = {"expr": self.use(self._text(key))}
            return dict(self._bound[name])
        value: dict[str, Any] = {"config": [key, self.aliases[key]] if key in self.aliases else key}
        default = self._default(key)
        if default is not None:
            value["default"] = default
        self._bound[name] = value
        return dict(value)

    def dims(self) -> dict[str, Any]:
        """Every used symbol, those that defaults use with them."""
        found: dict[str, Any] = {}
        while left := [n for n in self.used if n not in found]:
            for name in left:
                found[name] = self.bound(name)
        return {n: found[n] for n in self.keys if n in found}

    def _default(self, key: str) -> Any:
        """What the class does where the key is absent: one value, or a rule over other keys."""
        implied = without(self.found, key)
        plain = self.defaults.get(key)
        values = [v for _, v in implied]
        if not values or any(v is None for v in values):
            if key in self._learned:
                return {"expr": self.use(self._learned[key][0])}
            return self._rule(key) if key in _NOTHING else None
        if all(v == plain for v in values):
            return None if plain and type(plain) in (list, dict) else plain
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
            return None
        others = [n for n, k in self.keys.items() if k != key and k in self.found.effective]
        envs = [self._filled(values_) for values_, _ in implied]
        text = fit.whole(values, envs, others)
        return None if text is None else {"expr": self.use(text)}

    def learn(self, templates: Sequence[Template], samples: Sequence[Sample]) -> None:
        """What sizes of keys that hold nothing are: where a key that holds a number gives a shape, that shape tells."""
        for key, name in self.by_key.items():
            held = [self.found.env(s).get(key) for s in samples]
            if key in _NOTHING or None not in held or len({v for v in held if type(v) is int}) < 2:
                continue
            for t in templates:
                for axis in range(max((len(s) for s in t.shapes if s is not None), default=0)):
                    if self._learns(key, name, t, axis, held, samples):
                        break
                if key in self._learned:
                    break

    def _learns(
        self, key: str, name: str, t: Template, axis: int, held: Sequence[Any], samples: Sequence[Sample]
    ) -> bool:
        sizes = {i: s[axis] for i, s in enumerate(t.shapes) if s is not None and len(s) > axis}
        given = [i for i in sizes if type(held[i]) is int]
        if len({held[i] for i in given}) < 2 or any(sizes[i] != held[i] for i in given):
            return False
        empty = [i for i in sizes if held[i] is None]
        ys, envs = [sizes[i] for i in empty], [self.env(samples[i]) for i in empty]
        others = [n for n in self._by_rank(ys, envs) if n != name]
        text = fit.whole(ys, envs, others) if others else None
        if text is not None:
            self._learned[key] = (text, {id(samples[i]): sizes[i] for i in empty})
            self._envs.clear()
        return text is not None

    # -- what follows what -------------------------------------------------------------------------------------------

    def size(self, samples: Sequence[Sample], template: Template, read: Callable[[int], int | None], what: str) -> str:
        """The expression of one size of a template over all samples that have it. Raises Unfit."""
        places = [i for i in range(len(samples)) if read(i) is not None]
        ys = [y for i in places if (y := read(i)) is not None]
        moved = self._moving(read, samples)
        envs = [self.env(samples[i]) for i in places]
        near = self._ruled and [n for n in self.names(moved) if n in ("d_model", "n_heads")]
        direct = self.names([*moved, *(self._ruled if near else [])])
        for symbols in (direct, self._by_rank(ys, envs)):
            text = fit.whole(ys, envs, symbols) if symbols else None
            if text is not None:
                return self.use(text)
        for flag in self._varied(envs):
            sides = [self._side_of(flag, value, ys, envs) for value in (True, False)]
            if all(type(e[flag]) is bool for e in envs) and None not in sides:
                return self.use(f"{sides[0]} if {flag} else {sides[1]}")
        raise Unfit(f"{template.text}: {what} ({', '.join(map(str, dict.fromkeys(ys)))}) follows no config key")

    def _side_of(self, flag: str, value: bool, ys: Sequence[int], envs: Sequence[dict[str, Any]]) -> str | None:
        """What a size follows where a flag has this value."""
        mine = [(y, e) for y, e in zip(ys, envs, strict=True) if e[flag] is value]
        sizes, given = [y for y, _ in mine], [e for _, e in mine]
        return fit.whole(sizes, given, self._by_rank(sizes, given)) if len(set(sizes)) > 2 else None

    def _by_rank(self, ys: Sequence[int], envs: Sequence[dict[str, Any]]) -> list[str]:
        """Symbols of sizes that change over these samples, those that come near the values first."""
        names = [n for n in self.names(self.found.effective) if len({repr(e[n]) for e in envs}) > 1]
        names = [n for n in names if all(isinstance(e[n], int) and not isinstance(e[n], bool) for e in envs)]

        def misses(name: str) -> int:
            return sum(e[name] != y for e, y in zip(envs, ys, strict=True))

        return sorted(names, key=misses)[:8]

    def _moving(self, read: Callable[[int], Any], samples: Sequence[Sample]) -> list[str]:
        """Config keys that move a value by themselves."""
        place = {id(s): i for i, s in enumerate(samples)}
        base = read(place[id(self.found.base)])
        return [
            key
            for key, many in self.found.single.items()
            if base is not None and any(read(place[id(s)]) not in (None, base) for s in many if id(s) in place)
        ]

    def condition(self, there: Sequence[bool], samples: Sequence[Sample], what: str) -> str | None:
        """None where it is there always, else the condition. Raises Unfit."""
        if all(there):
            return None
        envs = [self.env(s) for s in samples]
        place = {id(s): i for i, s in enumerate(samples)}
        base = there[place[id(self.found.base)]] if id(self.found.base) in place else None
        moved = [
            k
            for k, many in self.found.single.items()
            if base is not None and any(id(s) in place and there[place[id(s)]] != base for s in many)
        ]
        for symbols in (self.names(moved), self._varied(envs)):
            text = conditions.of_config(there, envs, symbols) if symbols else None
            if text is not None:
                return self.use(text)
        raise Unfit(f"{what} is there under some configs, and no condition on them tells which")

    def _varied(self, envs: Sequence[dict[str, Any]]) -> list[str]:
        return [n for n in self.keys if len({repr(e[n]) for e in envs}) > 1][:24]

    def layers(
        self, there: Sequence[frozenset[int]], spans: Sequence[Collection[int]], samples: Sequence[Sample], what: str
    ) -> str:
        """The condition over `l`. Raises Unfit."""
        place = {id(s): i for i, s in enumerate(samples)}
        moved = [
            k
            for k, many in self.found.single.items()
            if k in LAYER_KEYS or any(there[place[id(s)]] != there[0] for s in many if id(s) in place)
        ]
        envs = [self.env(s) for s in samples]
        text = conditions.of_layers(there, spans, envs, self.names(moved))
        if text is None:
            raise Unfit(f"{what} is in some layers, and no condition on them tells which")
        return self.use(self._or_implied(text, what))

    def _or_implied(self, text: str, what: str) -> str:
        """The condition, and what it is where config.json lacks the list that it reads. Raises Unfit."""
        read = re.fullmatch(r"(\w+)\[l\] (==|!=) (\S+)", text)
        if read is None:
            if "[l]" in text:
                raise Unfit(f"{what} follows several lists of layers")
            return text
        name, sign, entry = read[1], read[2], ast.literal_eval(read[3])
        found = implied.rule(self.found, self.keys[name], self.by_key, entry, equal=sign == "==")
        if found is None:
            raise Unfit(f"{what} follows {self.keys[name]}, and what the class implies without it follows no key")
        for key, default in found.legacy.items():
            self.keys.setdefault(key, key)
            self.by_key.setdefault(key, key)
            self._bound[key] = {"config": key, "default": default}
        self._envs.clear()
        return f"{text} if {name} is not None else {found.text}"

    def real(self, ys: Sequence[float | None], samples: Sequence[Sample], what: str) -> Any:
        """A literal, or the bound value that a factor, epsilon or cap follows. Raises Unfit."""
        envs = [self.env(s) for s in samples]
        if all(y is None for y in ys):
            return None
        known = [y for y in ys if y is not None]
        if len(known) == len(ys):
            if all(abs(y - known[0]) <= 2e-6 * abs(known[0]) for y in known):
                return self._constant(known[0], envs)
            names = self._numeric(envs)
            text = fit.real(known, envs, names)
            if text is not None:
                return self.value(text)
            return self._switched(known, samples, envs, names, what)
        # A key that holds nothing gives nothing.
        for name in self._varied(envs):
            pairs = [(y, e[name]) for y, e in zip(ys, envs, strict=True)]
            if all(v is None if y is None else _near(y, v) for y, v in pairs):
                return self.value(name)
        raise Unfit(f"{what} is {ys[:4]} and follows no config key")

    def _constant(self, y: float, envs: Sequence[dict[str, Any]]) -> Any:
        """One value: a literal, but for a key that has it in all these samples and another value in the base."""
        base = self.env(self.found.base)
        for name in self.keys:
            same = all(isinstance(e[name], float) and _near(y, e[name]) for e in envs)
            if same and base[name] is not None and not _near(y, base[name]):
                return self.value(name)
        return _plain(y)

    def _switched(self, ys: list[float], samples: Sequence[Sample], envs: Any, names: list[str], what: str) -> Any:
        """`if` a flag then one value else another."""
        for flag in self._varied(envs):
            if not all(isinstance(e[flag], bool) for e in envs):
                continue
            sides: list[Any] = []
            for side in (True, False):
                mine = [i for i, e in enumerate(envs) if e[flag] is side]
                given = [ys[i] for i in mine]
                if all(_near(y, given[0]) for y in given):
                    sides.append(_plain(given[0]))
                    continue
                text = fit.real(given, [envs[i] for i in mine], names)
                sides.append(None if text is None else text)
            if None not in sides:
                return {"if": self.use(flag), "then": self._side(sides[0]), "else": self._side(sides[1])}
        raise Unfit(f"{what} is {[float(f'{y:.4g}') for y in ys[:5]]} and follows no config key")

    def _side(self, side: Any) -> Any:
        return self.value(side) if isinstance(side, str) else side

    def _numeric(self, envs: Sequence[dict[str, Any]]) -> list[str]:
        names = [n for n in self.keys if all(type(e[n]) in (int, float) for e in envs)]
        moving = [n for n in names if len({e[n] for e in envs}) > 1]
        return sorted(moving, key=lambda n: not isinstance(envs[0][n], float))

    def value(self, text: str) -> dict[str, Any]:
        """A value of the manifest that is one symbol (bound to its key) or an expression."""
        return self.bound(text) if text in self.keys else {"expr": self.use(text)}


def _near(a: float, b: Any) -> bool:
    return isinstance(b, int | float) and abs(a - b) <= 2e-6 * max(abs(a), abs(b))


def _plain(value: float) -> float:
    """The short decimal that a number is the rounding of."""
    for digits in range(1, 8):
        short = float(f"{value:.{digits}g}")
        if abs(short - value) <= 1e-6 * abs(value):
            return short
    return value
