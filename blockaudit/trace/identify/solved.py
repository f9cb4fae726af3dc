"""What a field is, as far as the numbers say; the conventional values that a result may be named after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CONVENTIONAL = (1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
# Further apart than this, an interval names nothing: 2e-6 is an epsilon too.
_NAMES = 1.5
# Closer than this, a number that is no convention is a value.
_VALUE = 1.02
# An epsilon that no row could have told from none.
_NOTHING = 1e-15


@dataclass(frozen=True)
class Solved:
    """One field. `value` is None where the rows do not decide: unknown, never a guess.

    `interval` holds the truth wherever the formula is one of those that were tried. `if_declared`: what the value and
    the interval are under the declared formula, where the rows do not contradict it. `proposals`: conventional values
    inside the interval (under the declared formula, where it fits): worth a trial, not a result.
    """

    field: str
    value: Any = None
    interval: tuple[float, float] | None = None
    evidence: str = ""
    if_declared: tuple[Any, tuple[float, float]] | None = None
    proposals: tuple[float, ...] = ()


def unknown(field: str, evidence: str, interval: tuple[float, float] | None = None) -> Solved:
    """A field that the rows do not decide, with the reason."""
    return Solved(field, None, interval, evidence)


def epsilon_in(low: float, high: float, conventional: Sequence[float] = CONVENTIONAL) -> float | None:
    """The epsilon that an interval names: 0, the one conventional number in it, else its middle; None if too wide."""
    if high < low:
        return None
    if low <= 0:
        return 0.0 if high <= _NOTHING else None
    inside = [c for c in conventional if low <= c <= high]
    if high / low <= _NAMES and len(inside) == 1:
        return inside[0]
    return shortest(low, high) if high / low <= _VALUE else None


def number_in(low: float, high: float, plain: Sequence[float], narrow: float = 0.02) -> float | None:
    """The one of `plain` inside a narrow interval, else its middle; None where it is too wide to name anything."""
    middle = (low + high) / 2
    if not high - low <= narrow * max(1.0, abs(middle)):
        return None
    inside = [p for p in plain if low <= p <= high]
    return inside[0] if len(inside) == 1 else shortest(low, high)


def shortest(low: float, high: float) -> float:
    """The number of fewest digits that an interval holds, near its middle."""
    middle = (low + high) / 2
    for digits in range(1, 17):
        short = float(f"{middle:.{digits}g}")
        if low <= short <= high:
            return short
    return middle
