"""Which condition over config values tells the samples where a thing is there from those where it is not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, cast

Env = Mapping[str, Any]
Test = Callable[[Env, int], bool]


def of_config(there: Sequence[bool], envs: Sequence[Env], symbols: Sequence[str]) -> str | None:
    """The simplest condition that holds in exactly these samples; None where none of them does."""
    atoms = [(t, [_tried(f, e, 0) for e in envs]) for t, f in _atoms(envs, symbols)]
    return _simplest(list(there), atoms)


def of_layers(
    there: Sequence[frozenset[int]],
    layers: Sequence[Collection[int]],
    envs: Sequence[Env],
    symbols: Sequence[str],
    *,
    constants: bool = False,
) -> str | None:
    """The same over `l`: where each sample has the thing in these layers of its own.

    constants: the first few layers, or every second one, may be meant whatever the config says.
    """
    wanted = [n in mine for mine, span in zip(there, layers, strict=True) for n in span]

    def column(test: Test) -> list[bool | None]:
        return [_tried(test, e, n) for e, span in zip(envs, layers, strict=True) for n in span]

    fixed = _fixed() if constants else ()
    atoms = [(t, column(f)) for t, f in (*_layer_atoms(envs, symbols), *_atoms(envs, symbols), *fixed)]
    return _simplest(wanted, atoms)


def _fixed() -> Iterator[tuple[str, Test]]:
    for c in (1, 2, 3, 4):
        yield f"l < {c}", lambda _, n, c=c: n < c
        yield f"l >= {c}", lambda _, n, c=c: n >= c
        for m in range(c):
            yield f"l % {c} == {m}", lambda _, n, c=c, m=m: n % c == m
            yield f"l % {c} != {m}", lambda _, n, c=c, m=m: n % c != m


def _simplest(wanted: list[bool], atoms: list[tuple[str, list[bool | None]]]) -> str | None:
    if len(set(wanted)) == 1:
        return str(wanted[0])
    useful: list[tuple[str, list[bool]]] = []
    seen: set[tuple[bool, ...]] = set()
    for text, column in atoms:
        if any(v is None for v in column):
            continue
        values = cast("list[bool]", column)
        if values == wanted:
            return text
        if len(set(values)) == 2 and tuple(values) not in seen:
            seen.add(tuple(values))
            useful.append((text, values))
    # A conjunct holds wherever the thing is there, a disjunct nowhere that it is not.
    both = [a for a in useful if all(v or not w for v, w in zip(a[1], wanted, strict=True))]
    either = [a for a in useful if all(w or not v for v, w in zip(a[1], wanted, strict=True))]
    for count in (2, 3):
        for word, parts, join in ((" and ", both, all), (" or ", either, any)):
            for chosen in combinations(parts[:24], count):
                if [join(row) for row in zip(*(v for _, v in chosen), strict=True)] == wanted:
                    return word.join(t for t, _ in chosen)
    return None


def _tried(test: Test, env: Env, layer: int) -> bool | None:
    try:
        return bool(test(env, layer))
    except (KeyError, TypeError, IndexError, ZeroDivisionError):
        return None


def _atoms(envs: Sequence[Env], symbols: Sequence[str]) -> Iterator[tuple[str, Test]]:
    for s in symbols:
        values = [e.get(s) for e in envs]
        if any(isinstance(v, bool) for v in values):
            yield s, lambda e, _, s=s: e[s]
            yield f"not {s}", lambda e, _, s=s: not e[s]
            continue
        if any(v is None for v in values):
            yield f"{s} is not None", lambda e, _, s=s: e[s] is not None
            yield f"{s} is None", lambda e, _, s=s: e[s] is None
        words = list(dict.fromkeys(v for v in values if isinstance(v, str)))
        for word in words:
            yield f"{s} == {word!r}", lambda e, _, s=s, w=word: e[s] == w
            yield f"{s} != {word!r}", lambda e, _, s=s, w=word: e[s] != w
        if any(v == 0 for v in values if v is not None):
            yield f"{s} > 0", lambda e, _, s=s: e[s] > 0
            yield f"{s} == 0", lambda e, _, s=s: e[s] == 0
    for a, b in combinations(symbols, 2):
        yield f"{a} != {b}", lambda e, _, a=a, b=b: _ints(e, a, b) and e[a] != e[b]
        yield f"{a} == {b}", lambda e, _, a=a, b=b: _ints(e, a, b) and e[a] == e[b]


def _ints(env: Env, *names: str) -> bool:
    if all(isinstance(env[n], int) and not isinstance(env[n], bool) for n in names):
        return True
    raise TypeError


def _layer_atoms(envs: Sequence[Env], symbols: Sequence[str]) -> Iterator[tuple[str, Test]]:
    for s in symbols:
        values = [e.get(s) for e in envs]
        lists = [cast("list[Any]", v) for v in values if isinstance(v, list)]
        if lists:
            yield f"l in {s}", lambda e, n, s=s: n in e[s]
            yield f"l not in {s}", lambda e, n, s=s: n not in e[s]
            entries = dict.fromkeys(x for v in lists for x in v if isinstance(x, str | int))
            for x in list(entries)[:6]:
                yield f"{s}[l] == {x!r}", lambda e, n, s=s, x=x: e[s][n] == x
            for x in list(entries)[:6]:
                yield f"{s}[l] != {x!r}", lambda e, n, s=s, x=x: e[s][n] != x
        elif any(isinstance(v, int) and not isinstance(v, bool) for v in values):
            yield f"l == {s} - 1", lambda e, n, s=s: n == e[s] - 1
            yield f"l != {s} - 1", lambda e, n, s=s: n != e[s] - 1
            yield f"l < {s}", lambda e, n, s=s: n < e[s]
            yield f"l >= {s}", lambda e, n, s=s: n >= e[s]
            yield f"l <= {s}", lambda e, n, s=s: n <= e[s]
            yield f"l > {s}", lambda e, n, s=s: n > e[s]
            yield f"(l + 1) % {s} == 0", lambda e, n, s=s: (n + 1) % e[s] == 0
            yield f"(l + 1) % {s} != 0", lambda e, n, s=s: (n + 1) % e[s] != 0
            yield f"l % {s} == 0", lambda e, n, s=s: n % e[s] == 0
            yield f"l % {s} != 0", lambda e, n, s=s: n % e[s] != 0
    for a in symbols:
        for b in symbols:
            if a != b:
                yield f"l % {a} == {b}", lambda e, n, a=a, b=b: n % e[a] == e[b]
                yield f"l % {a} != {b}", lambda e, n, a=a, b=b: n % e[a] != e[b]
                yield f"(l - {b}) % {a} == 0", lambda e, n, a=a, b=b: (n - e[b]) % e[a] == 0
                yield f"(l - {b}) % {a} != 0", lambda e, n, a=a, b=b: (n - e[b]) % e[a] != 0
