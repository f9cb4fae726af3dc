"""Resolve the values of a manifest under one config.json, keeping the bytes each was read from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from blockaudit.manifest import grammar
from blockaudit.records.bound import Resolved
from blockaudit.records.checkpoint import Fault
from blockaudit.records.manifest import Bound, Value

_ABSENT: Any = object()
# What an expression says in each of some layers, by its text and those layers.
Layers = tuple[int, ...] | range
Layered = dict[tuple[str, Layers], dict[int, Resolved]]


def lookup(config: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key, or the module's absent mark."""
    if key in config:
        return config[key]
    here: Any = config
    for part in key.split("."):
        if not isinstance(here, dict) or part not in here:
            return _ABSENT
        here = here[part]  # pyright: ignore[reportUnknownVariableType]
    return here  # pyright: ignore[reportUnknownVariableType]


class Resolver:
    """Values of one manifest under one config. With `pins`, pinned values stand; without, config.json speaks.

    `observed` gives dimensions where there is no config; `assume` overrides some, to ask what would follow. `layered`
    is what resolvers of the same manifest, config and arguments have worked out already, and is added to.

    config None means that config.json cannot be read: whatever depends on it is unknown, never a default.
    """

    def __init__(
        self,
        dims: Mapping[str, Value],
        config: Mapping[str, Any] | None,
        *,
        pins: bool,
        observed: Mapping[str, int] | None = None,
        assume: Mapping[str, int] | None = None,
        layered: Layered | None = None,
    ) -> None:
        self._declared = dims
        self._observed = observed or {}
        self._resolved: dict[str, Resolved] = {name: Resolved(value) for name, value in (assume or {}).items()}
        self._config = config
        self._pins = pins
        self._layered: Layered = {} if layered is None else layered
        self._busy: set[str] = set()
        self.problems: list[Fault] = []
        self.consumed: set[str] = set()

    def dim(self, name: str) -> Resolved:
        """A symbol of `dims`. Raises grammar.UnknownSymbol where there is none."""
        if name not in self._resolved:
            if name not in self._declared or name in self._busy:
                raise grammar.UnknownSymbol(name)
            self._busy.add(name)
            try:
                said = self._checked(name, self.value(self._declared[name], size=True))
                if not said.known and self._config is None and name in self._observed:
                    said = Resolved(self._observed[name], headers=True)
                self._resolved[name] = said
            finally:
                self._busy.discard(name)
        return self._resolved[name]

    def value(self, value: Value, *, size: bool = False) -> Resolved:
        """Any value of the manifest. Never raises: what cannot be computed is a problem and unknown.

        An explicit null in config.json is taken at its word (no softcap), but for a `size`: there it asks for the
        class's own rule, as absence does (num_key_value_heads).
        """
        if not isinstance(value, Bound):
            return Resolved(value)
        if self._pins and value.pinned is not UNSET:
            keys = tuple(dict.fromkeys(self._keys(value)))
            self.consumed.update(keys)  # the class still reads them, whatever the manifest froze
            return Resolved(value.pinned, keys=keys, pinned=True)
        if value.config is not None:
            return self._from_config(value, null_is_default=size)
        if value.expr is not None:
            return self.expression(value.expr)
        condition = self.expression(value.if_ or "False")
        if not condition.known:
            return condition
        chosen = self.value(value.then if condition.value else value.else_)
        return _joined(chosen.value, (condition, chosen))

    def expression(self, text: str, **extra: Any) -> Resolved:
        """The value of an expression over dims and `extra` (the layer number)."""
        parts: list[Resolved] = []
        try:
            env = self._env(text, extra, parts)
            return _joined(None, parts, known=False) if env is None else _joined(grammar.evaluate(text, env), parts)
        except grammar.ExpressionError as error:
            return self._uncomputed(text, error, parts)

    def by_layer(self, text: str, layers: Layers) -> dict[int, Resolved]:
        """The value of an expression in each layer (`l`); what does not depend on the layer is worked out once.

        Where it cannot be computed it is unknown, and the first such layer says why.
        """
        if not layers:
            return {}
        parts: list[Resolved] = []
        try:
            env = self._env(text, {"l": layers[0]}, parts)
        except grammar.ExpressionError as error:
            return dict.fromkeys(layers, self._uncomputed(text, error, parts))
        if env is None:
            return dict.fromkeys(layers, _joined(None, parts, known=False))
        said = self._layered.get((text, layers))
        if said is None:
            said = self._layered[text, layers] = _each(text, env, layers, _joined(None, parts))
        if not all(r.known for r in said.values()):
            self.expression(text, l=next(n for n, r in said.items() if not r.known))  # notes the problem
        return said

    def _env(self, text: str, given: Mapping[str, Any], parts: list[Resolved]) -> dict[str, Any] | None:
        """The values of the symbols of `text`, each noted in `parts`; None from the first that is not known.

        Raises grammar.ExpressionError where there is no such symbol.
        """
        env = dict(given)
        for name in grammar.symbols(text):
            if name not in env:
                part = self.dim(name)
                parts.append(part)
                if not part.known:
                    return None
                env[name] = part.value
        return env

    def _uncomputed(self, text: str, error: grammar.ExpressionError, parts: list[Resolved]) -> Resolved:
        unknown = _joined(None, parts, known=False)
        self._problem(f"{text!r} cannot be computed: {error}", unknown.keys)
        return unknown

    def condition(self, when: str | Bound | None, **extra: Any) -> Resolved:
        """A `when` clause; absent means true."""
        if when is None:
            return Resolved(True)
        return self.expression(when, **extra) if isinstance(when, str) else self.value(when)

    def _from_config(self, value: Bound, *, null_is_default: bool) -> Resolved:
        keys = (value.config,) if isinstance(value.config, str) else tuple(value.config or ())
        self.consumed.update(keys)
        if self._config is None:
            return Resolved(None, known=False, keys=keys[:1])
        for key in keys:
            found = lookup(self._config, key)
            if found is None and not null_is_default and not isinstance(value.default, Bound):
                return Resolved(None, keys=(key,))
            if found is not _ABSENT and found is not None:
                return Resolved(found, keys=(key,))
        absent = all(lookup(self._config, key) is _ABSENT for key in keys)
        default = self.value(value.default)
        implied = (keys[0],) if absent else ()
        return Resolved(
            default.value, default.known, tuple(dict.fromkeys((keys[0], *default.keys))), (*implied, *default.implied)
        )

    def _keys(self, value: Value) -> Iterator[str]:
        """Config keys that a pinned value was once read from."""
        if isinstance(value, Bound):
            if value.config is not None:
                yield value.config if isinstance(value.config, str) else value.config[0]
            for text in filter(None, (value.expr, value.if_)):
                for name in grammar.symbols(text):
                    yield from self._keys(self._declared.get(name))
            for part in (value.then, value.else_):
                yield from self._keys(part)

    def _checked(self, name: str, resolved: Resolved) -> Resolved:
        """A dimension must be a number that a shape can hold, or a flag, list or word."""
        v = resolved.value
        if isinstance(v, int | float) and not isinstance(v, bool) and not abs(v) < 2**48:
            self._problem(f"{name} = {v!r} is out of range", resolved.keys, observed=v)
            return Resolved(None, False, resolved.keys)
        return resolved

    def _problem(self, message: str, keys: tuple[str, ...], observed: Any = None) -> None:
        fault = Fault("config-invalid", "config.json", message, observed=observed, evidence=", ".join(keys))
        if keys and fault not in self.problems:
            self.problems.append(fault)


def _each(text: str, env: Mapping[str, Any], layers: Layers, known: Resolved) -> dict[int, Resolved]:
    """The value of an expression in each layer as `known` with that value; unknown where it cannot be computed."""
    value_in, unknown = grammar.function_of("l", text, env), replace(known, known=False)
    said: dict[int, Resolved] = {}
    for layer in layers:
        try:
            said[layer] = replace(known, value=value_in(layer))
        except grammar.ExpressionError:
            said[layer] = unknown
    return said


def _joined(value: Any, parts: Any, known: bool = True) -> Resolved:
    """A value computed from `parts`: their keys and defaults together. It is pinned only where all its parts are."""
    parts = tuple(parts)
    keyed = [p for p in parts if p.keys or p.pinned]
    return Resolved(
        value,
        known and all(p.known for p in parts),
        tuple(dict.fromkeys(k for p in parts for k in p.keys)),
        tuple(dict.fromkeys(k for p in parts for k in p.implied)),
        bool(keyed) and all(p.pinned for p in keyed),
        any(p.headers for p in parts),
    )
