"""Why shapes differ: a config value that does not fit the tensors, a transpose, or a tensor that is simply wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from blockaudit.manifest import grammar
from blockaudit.manifest.values import Resolver
from blockaudit.reconcile.dims import solve
from blockaudit.records.binding import Binding, Misshapen, TemplateBinding
from blockaudit.records.bound import BoundManifest
from blockaudit.records.manifest import Bound

_SMALL = range(1, 129)  # head counts and the like, tried where a shape does not give the number by itself


class WrongDimension(msgspec.Struct, frozen=True):
    """A dimension that, set to `found`, makes the shapes of `templates` right and no other shape wrong.

    `alternatives` are other dimensions of which the same can be said: headers cannot tell which of them it is.
    """

    symbol: str
    declared: Any
    found: int
    tensors: tuple[str, ...]
    templates: tuple[str, ...]
    alternatives: tuple[tuple[str, int], ...]
    source: str


class ShapeAccount(msgspec.Struct, frozen=True):
    """Every tensor of an unexpected shape, under the reason that explains it."""

    dimensions: tuple[WrongDimension, ...]
    transposed: tuple[tuple[TemplateBinding, tuple[Misshapen, ...]], ...]
    other: tuple[tuple[TemplateBinding, tuple[Misshapen, ...]], ...]


def explain(
    bound: BoundManifest, binding: Binding, config: Mapping[str, Any] | None, *, pins: bool = True
) -> ShapeAccount:
    """The fewest wrong dimensions that explain the shapes; what they leave is a transpose or a wrong shape."""
    odd = [t for t in binding.templates if t.misshapen and not t.expected.derived]
    if not odd:
        return ShapeAccount((), (), ())
    transposed = {
        id(t): tuple(m for m in t.misshapen if len(m.found) > 1 and m.found == m.expected[::-1] != m.expected)
        for t in odd
    }
    asked = [t for t in odd if not transposed[id(t)] and _uniform(t)]
    dimensions = _wrong_dimensions(bound, binding, config, asked, pins)
    explained = {name for d in dimensions for name in d.templates}
    left = [
        (t, tuple(m for m in t.misshapen if m not in transposed[id(t)]))
        for t in odd
        if t.expected.template not in explained
    ]
    return ShapeAccount(
        tuple(dimensions),
        tuple((t, transposed[id(t)]) for t in odd if transposed[id(t)]),
        tuple((t, rest) for t, rest in left if rest),
    )


def _uniform(t: TemplateBinding) -> bool:
    """Whether every tensor of the template has one and the same other shape: then a dimension may be wrong."""
    return len(t.misshapen) == t.found and len({m.found for m in t.misshapen}) == 1


class _Trial:
    """What shapes would follow from other dimensions."""

    def __init__(self, bound: BoundManifest, binding: Binding, config: Mapping[str, Any] | None, pins: bool) -> None:
        self.bound, self.config, self.pins = bound, config, pins
        self.seen: list[tuple[TemplateBinding, tuple[int, ...]]] = []
        for t in binding.templates:
            header = binding.tensors.get(t.example or "")
            if header is not None and (not t.misshapen or _uniform(t)):
                self.seen.append((t, t.misshapen[0].found if t.misshapen else header.shape))

    def right(self, assume: Mapping[str, int]) -> set[str]:
        """Templates whose stored shape is the one that follows."""
        resolver = Resolver(self.bound.manifest.dims, self.config, pins=self.pins, assume=assume)
        return {
            t.expected.template
            for t, shape in self.seen
            if tuple(resolver.expression(s).value for s in t.expected.symbols) == shape
        }


def _wrong_dimensions(
    bound: BoundManifest,
    binding: Binding,
    config: Mapping[str, Any] | None,
    asked: list[TemplateBinding],
    pins: bool,
) -> list[WrongDimension]:
    if not asked:
        return []
    trial = _Trial(bound, binding, config, pins)
    env = {name: r.value for name, r in bound.dims.items() if r.known}
    assume: dict[str, int] = {}
    right = trial.right(assume)
    found: list[WrongDimension] = []
    for _ in range(4):
        wrong = [t for t in asked if t.expected.template not in right]
        scored: list[tuple[int, int, str, int, set[str]]] = []
        for order, (symbol, value) in enumerate(_candidates(bound, wrong, {**env, **assume})):
            now = trial.right({**assume, symbol: value})
            if now > right:
                scored.append((len(now), -order, symbol, value, now))
        if not scored:
            break
        best = max(s[0] for s in scored)
        ties = sorted((s for s in scored if s[0] == best), key=lambda s: -s[1])
        _, _, symbol, value, now = ties[0]
        others = tuple(dict.fromkeys((s, v) for _, _, s, v, _ in ties[1:] if s != symbol))[:3]
        fixed = tuple(t for t in wrong if t.expected.template in now)
        found.append(
            WrongDimension(
                symbol, env.get(symbol), value, tuple(m.key for t in fixed for m in t.misshapen),
                tuple(t.expected.template for t in fixed), others, bound.dims[symbol].evidence,
            )
        )  # fmt: skip
        assume[symbol], right = value, now
    return found


def _candidates(
    bound: BoundManifest, wrong: Iterable[TemplateBinding], env: Mapping[str, Any]
) -> Iterable[tuple[str, int]]:
    """Single changes worth trying: solved from one axis, then small counts for the symbols behind it."""
    tried: dict[tuple[str, int], None] = {}
    implicated: dict[str, None] = {}
    for t in wrong:
        for text, size in zip(t.expected.symbols, t.misshapen[0].found, strict=False):
            for symbol in grammar.symbols(text):
                implicated[symbol] = None
                value = solve(text, symbol, size, env)
                if value is not None and value != env.get(symbol):
                    tried[symbol, value] = None
    for symbol in list(implicated):
        default = bound.manifest.dims.get(symbol)
        text = getattr(getattr(default, "default", None), "expr", None) or getattr(default, "expr", None)
        for behind in grammar.symbols(text) if isinstance(text, str) else ():
            # A dimension that config.json itself gives, behind one that is derived from it.
            if isinstance(bound.manifest.dims.get(behind), Bound):
                tried.update(dict.fromkeys((behind, n) for n in _SMALL if n != env.get(behind)))
    return tried
