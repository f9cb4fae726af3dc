"""Comparisons of one run, settled a layer at a time and held to the policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from blockaudit.records.conformance import Difference, Mode, SiteResult
from blockaudit.records.tolerance import TolerancePolicy
from blockaudit.trace import compare, tolerance
from blockaudit.trace.compare import Pending

NAMES = {torch.float64: "float64", torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class Expected(NamedTuple):
    """What a site should hold: the reference's value, and the noise of the dtype judged.

    `noisy` is the reference in the dtype judged, of the first rows and tokens alone where that is dear. `spellings`
    are correct roundings of a norm, the first of them the declared one: candidates are held to its bits.
    """

    value: Tensor
    noisy: Tensor | None = None
    spellings: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class _Waiting:
    site: str
    mode: Mode
    pending: Pending
    floor: Pending | None
    spread: tuple[Pending, ...]
    is_norm: bool
    probe: str | None
    ours: bool


@dataclass
class Judge:
    """Collects sites of candidates that ran in `dtype`."""

    dtype: torch.dtype
    policy: TolerancePolicy
    results: list[SiteResult] = field(default_factory=list[SiteResult])
    _waiting: list[_Waiting] = field(default_factory=list[_Waiting])

    def add(
        self,
        site: str,
        mode: Mode,
        candidate: Tensor,
        expected: Expected,
        *,
        valid: Tensor | None = None,
        is_norm: bool = False,
        probe: str | None = None,
    ) -> None:
        """Compare one site; nothing waits for the device before `settle`. Shapes that differ are a ValueError.

        Where no row counts nothing is compared.
        """
        if valid is not None and not bool(valid.any()):
            self.nothing(site, mode, candidate)
            return
        rounded = expected.spellings[0] if expected.spellings else None
        pending = compare.difference(
            candidate, expected.value, dtype=self.dtype, valid=_fitting(valid, candidate), bits_against=rounded
        )
        floor = None
        if expected.noisy is not None:
            rows, tokens = expected.noisy.shape[:2] if expected.noisy.dim() > 2 else (len(expected.noisy), None)
            some = expected.value[:rows] if tokens is None else expected.value[:rows, :tokens]
            held = None if valid is None else _fitting(valid[:rows, :tokens], expected.noisy)
            floor = compare.difference(expected.noisy, some, dtype=self.dtype, valid=held)
        spread = tuple(
            compare.difference(other, rounded, dtype=self.dtype, valid=_fitting(valid, other), bits_against=rounded)
            for other in expected.spellings[1:]
            if rounded is not None
        )
        self._waiting.append(_Waiting(site, mode, pending, floor, spread, is_norm, probe, True))

    def nothing(self, site: str, mode: Mode, candidate: Tensor) -> None:
        """A site whose value is the candidate's own on both sides: nothing is compared."""
        pending = compare.difference(candidate[:0], candidate[:0], dtype=self.dtype)
        self._waiting.append(_Waiting(site, mode, pending, None, (), False, None, False))

    def forget(self, count: int) -> None:
        """Drop the last results: they are another rank's to tell."""
        if count:
            del self.results[-count:]

    def settle(self) -> list[SiteResult]:
        """Everything that was added since, judged, with one transfer from the device."""
        every = [p for w in self._waiting for p in (w.pending, w.floor, *w.spread) if p is not None]
        numbers = iter(compare.settle(every))
        fresh: list[SiteResult] = []
        for w in self._waiting:
            difference = next(numbers)
            floor = next(numbers) if w.floor is not None else None
            spread = [next(numbers) for _ in w.spread]
            fresh.append(self._judged(w, difference, floor, spread))
        self._waiting.clear()
        self.results += fresh
        return fresh

    def _judged(
        self, w: _Waiting, difference: Difference, floor: Difference | None, spread: list[Difference]
    ) -> SiteResult:
        name = NAMES[self.dtype]
        if not w.ours:
            return SiteResult(w.site, w.mode, name, difference, "max_abs", 0.0, 0.0, None, None)
        if floor is not None and spread:
            floor = tolerance.widest(floor, spread)
        judged = tolerance.judge(w.site, w.mode, name, difference, floor, self.policy, w.is_norm)
        measured = None if floor is None else floor.rms_rel
        return SiteResult(
            w.site, w.mode, name, difference, judged.metric, judged.observed, judged.tolerance, measured,
            judged.passed, w.probe,
        )  # fmt: skip


def _fitting(valid: Tensor | None, value: Tensor) -> Tensor | None:
    """The mask of valid rows, where a value has such rows at all."""
    return valid if valid is not None and valid.shape == value.shape[:-1] else None
