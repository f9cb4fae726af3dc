"""Which expression of config values a measured number follows, over every sample that there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, combinations_with_replacement
from math import prod, sqrt
from typing import Any

import numpy as np

Env = Mapping[str, Any]
_MOST_SYMBOLS = 10
_CLOSE = 2e-6


def whole(ys: Sequence[int], envs: Sequence[Env], symbols: Sequence[str]) -> str | None:
    """The simplest sum of products of `symbols` that gives every y exactly; None where there is none.

    Coefficients are whole numbers. A quotient counts as a factor where it leaves no remainder in any sample.
    """
    if all(y == ys[0] for y in ys):
        return str(ys[0])
    usable = [s for s in symbols if all(_is_int(e.get(s)) for e in envs)]
    if not 0 < len(usable) <= _MOST_SYMBOLS:
        return None
    terms = list(_terms(envs, usable))
    target = np.array(ys, dtype=float)
    for count in range(1, 5 if len(terms) < 50 else 3):
        for chosen in combinations(terms, count):
            text = _solved(target, chosen)
            if text is not None:
                return text
    return None


def real(ys: Sequence[float], envs: Sequence[Env], symbols: Sequence[str]) -> str | None:
    """The factor, power or quotient of one or two symbols that gives every y to the rounding of FP32."""
    usable = [s for s in symbols if all(_is_number(e.get(s)) and e[s] > 0 for e in envs)]
    for s in usable:
        for text, function in _SHAPES:
            if all(_near(y, function(e[s])) for y, e in zip(ys, envs, strict=True)):
                return text.format(s)
    for a in usable:
        for b in usable:
            for text, function in _SHAPES:
                if a != b and all(_near(y, e[a] * function(e[b])) for y, e in zip(ys, envs, strict=True)):
                    return f"{a} * {text.format(b)}"
    return None


def _itself(v: float) -> float:
    return v


def _inverse(v: float) -> float:
    return 1 / v


def _inverse_root(v: float) -> float:
    return v**-0.5


_SHAPES = (("{}", _itself), ("1 / {}", _inverse), ("sqrt({})", sqrt), ("{} ** -0.5", _inverse_root))


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= _CLOSE * max(abs(a), abs(b))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _terms(envs: Sequence[Env], symbols: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """(text, its values), the simplest first; the number one is a term."""

    def column(names: Sequence[str]) -> Any:
        return np.array([prod(e[n] for n in names) for e in envs], dtype=float)

    yield from ((s, column([s])) for s in symbols)
    yield ("", np.ones(len(envs)))
    for pair in combinations_with_replacement(symbols, 2):
        yield " * ".join(pair), column(pair)
    yield from _quotients(envs, symbols)
    for triple in combinations(symbols, 3):
        yield " * ".join(triple), column(triple)
    for a, b in combinations(symbols, 2):
        for c in symbols:
            if c not in (a, b) and all(e[c] > 0 and e[a] * e[b] % e[c] == 0 for e in envs):
                yield f"{a} * {b} // {c}", np.array([e[a] * e[b] // e[c] for e in envs], dtype=float)


def _quotients(envs: Sequence[Env], symbols: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for a in symbols:
        for b in symbols:
            if a != b and all(e[b] > 0 and e[a] % e[b] == 0 for e in envs):
                yield f"{a} // {b}", np.array([e[a] // e[b] for e in envs], dtype=float)
        for c in (2, 3, 4, 8):
            if all(e[a] % c == 0 for e in envs):
                yield f"{a} // {c}", np.array([e[a] // c for e in envs], dtype=float)
        for c in (8, 16, 32):
            values = np.array([-(-e[a] // c) for e in envs], dtype=float)
            if any(v != values[0] for v in values):
                yield f"ceil({a} / {c})", values


def _solved(target: Any, chosen: Sequence[tuple[str, Any]]) -> str | None:
    """The sum with whole coefficients, none of them nought, where it is exact."""
    matrix = np.stack([values for _, values in chosen], axis=1)
    if len(target) <= matrix.shape[1]:
        return None
    solve: Any = np.linalg.lstsq
    rounded = np.rint(solve(matrix, target, rcond=None)[0])
    if (rounded == 0).any() or (np.abs(rounded) > 4096).any() or not (matrix @ rounded == target).all():
        return None
    text = ""
    for (name, _), c in sorted(zip(chosen, rounded, strict=True), key=lambda item: (item[1] < 0, not item[0][0])):
        number = abs(int(c))
        part = str(number) if not name else name if number == 1 else f"{number} * {_bracketed(name)}"
        text += (f" - {part}" if c < 0 else f" + {part}") if text else (f"-{part}" if c < 0 else part)
    return text


def _bracketed(name: str) -> str:
    return f"({name})" if "//" in name else name
