"""From numbers to places on a line, and the round numbers that a reader finds there."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

# Beyond this ratio of largest to smallest a linear axis hides the small ones.
_WIDE = 30.0
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_ROUND = (1.0, 2.0, 5.0)


class Scale(msgspec.Struct, frozen=True):
    """An axis from `low` to `high`; `log` where it counts powers of ten."""

    low: float
    high: float
    log: bool = False

    def at(self, number: float) -> float:
        """Where a number stands: 0 at `low`, 1 at `high`; what lies outside stands at the end."""
        low, high, here = (self._place(n) for n in (self.low, self.high, max(min(number, self.high), self.low)))
        return (here - low) / (high - low)

    def ticks(self, about: int = 4) -> list[float]:
        """Round numbers along the axis."""
        return self._decades(about) if self.log else self._even(about)

    def _place(self, number: float) -> float:
        return math.log10(number) if self.log else number

    def _even(self, about: int) -> list[float]:
        step = _step((self.high - self.low) / about)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [n * step for n in range(first, last + 1)]

    def _decades(self, about: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = max(math.ceil((last - first) / about), 1)
        steps = _ROUND if last - first <= 2 else (1.0,)
        found = [step * 10.0**n for n in range(first, last + 1, every) for step in steps]
        return [tick for tick in found if self.low * (1 - 1e-9) <= tick <= self.high * (1 + 1e-9)]


def fitted(numbers: Iterable[float], *, signed: bool = False) -> Scale:
    """An axis that holds every finite number; one that holds zero unless they span powers of ten or are `signed`."""
    # What is smaller than 1e-300 has no round numbers about it, and stands where zero does.
    finite = sorted(n if abs(n) > 1e-300 else 0.0 for n in numbers if math.isfinite(n) and abs(n) < 1e300)
    low, high = (finite[0], finite[-1]) if finite else (0.0, 1.0)
    if signed:
        reach = max(abs(low), abs(high)) or 1.0
        return _rounded(min(low, -0.25 * reach), max(high, 0.25 * reach))
    if low > 0 and high / low > _WIDE:
        return Scale(_below(low), _above(high), log=True)
    return _rounded(min(low, 0.0), high if high > 0 else 1.0)


def _below(number: float) -> float:
    """The largest of 1, 2 and 5 times a power of ten that is no more."""
    power = 10.0 ** math.floor(math.log10(number))
    return max(step * power for step in _ROUND if step * power <= number * (1 + 1e-9))


def _above(number: float) -> float:
    """The smallest of them that is no less."""
    power = 10.0 ** math.floor(math.log10(number))
    return min(step * power for step in (*_ROUND, 10.0) if step * power >= number * (1 - 1e-9))


def _rounded(low: float, high: float) -> Scale:
    step = _step((high - low) / 4)
    return Scale(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step)


def _step(raw: float) -> float:
    """The next round number: 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(step * power for step in _STEPS if step * power >= raw * (1 - 1e-9))
