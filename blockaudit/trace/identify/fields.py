"""From the formulas that explain the rows to fields: a value where they agree, unknown with the reason elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from blockaudit.records.norm_spec import NormSpec
from blockaudit.trace.identify.epsilon import Fit
from blockaudit.trace.identify.formulas import Affine, Divisor, Rounds, Rows
from blockaudit.trace.identify.rounding import NARROW, name
from blockaudit.trace.identify.solved import CONVENTIONAL, Solved, epsilon_in, number_in, unknown

FIELDS = (
    "family", "center", "epsilon", "epsilon_location", "variance_correction", "scale", "scale_offset", "bias",
    "work_dtype", "cast_order",
)  # fmt: skip
_NAMES = {"layernorm": ("layernorm", "layernorm_std_eps"), "scalenorm": ("scalenorm", "qknorm")}


@dataclass(frozen=True)
class Explained:
    """One formula under which every row is explained. `fit`: its epsilons (dyt: its alphas)."""

    family: str
    divisor: Divisor | None
    affine: Affine
    how: Rounds
    fit: Fit

    def named(self, declared: NormSpec | None) -> str:
        """The family's name: of two names for one function, the declared one."""
        std = self.divisor is not None and self.divisor.outside and self.divisor.correction == 1
        own = "layernorm_std_eps" if std else self.family
        if declared is None or declared.family not in _NAMES.get(self.family, ()):
            return own
        return declared.family if self._same_function(declared) else own

    def _same_function(self, spec: NormSpec) -> bool:
        if self.divisor is None:
            return True
        outside = spec.epsilon_location == "outside" or spec.family == "layernorm_std_eps"
        return (self.divisor.outside, self.divisor.correction) == (outside, spec.variance_correction)

    def divides_like(self, spec: NormSpec) -> bool:
        """Whether the spec has this family and this divisor; epsilon, weight and rounding are not looked at."""
        return self.named(spec) == spec.family and self._same_function(spec)

    @property
    def scaled(self) -> bool:
        return self.affine.offset is not None


def solved(found: Sequence[Explained], rows: Rows, declared: NormSpec | None, why: str = "") -> list[Solved]:
    """One `Solved` per field of the norm (records.norm_spec)."""
    if not found:
        reason = why or (
            "no row to read" if not len(rows.x) else "none of the formulas that were tried gives these rows"
        )
        return [unknown(field, reason) for field in FIELDS]
    said = f"{len(found)} of the formulas tried give all {len(rows.x)} rows" if len(found) > 1 else ""
    said = said or f"the one formula that gives all {len(rows.x)} rows of {rows.x.shape[-1]}"
    return [
        _agreed("family", found, lambda e: e.named(declared), said),
        _agreed("center", found, lambda e: e.divisor is not None and e.divisor.center, said),
        *_epsilon(found, declared, said),
        _divisor("epsilon_location", found, lambda d: "outside" if d.outside else "inside", said),
        _divisor("variance_correction", found, lambda d: d.correction, said),
        *_scale(found, rows, said),
        _bias(found, rows, said),
        _work(found, rows, declared, said),
        _cast(found, rows, declared, said),
    ]


def _agreed(field: str, found: Sequence[Explained], of: Callable[[Explained], Any], said: str) -> Solved:
    values = list(dict.fromkeys(of(e) for e in found))
    if len(values) == 1:
        return Solved(field, values[0], evidence=said)
    return unknown(field, f"{' and '.join(str(v) for v in values)} give the same rows")


def _divisor(field: str, found: Sequence[Explained], of: Callable[[Divisor], Any], said: str) -> Solved:
    if any(e.divisor is None for e in found):
        return unknown(field, "nothing is divided" if all(e.divisor is None for e in found) else said)
    return _agreed(field, found, lambda e: None if e.divisor is None else of(e.divisor), said)


def _epsilon(found: Sequence[Explained], declared: NormSpec | None, said: str) -> list[Solved]:
    """Epsilon over all formulas that fit, and what it is under the declared one; a dyt's alpha in its place."""
    divided = [e for e in found if e.divisor is not None]
    if not divided:
        alphas = [e.fit for e in found if e.family == "dyt"]
        none = unknown("epsilon", "nothing is divided")
        if not alphas:
            return [none]
        low, high = _hull(alphas)
        value = number_in(low, high, ()) if len(alphas) == len(found) else None
        return [none, Solved("alpha", value, (low, high), said)]
    low, high = _hull([e.fit for e in divided])
    value = epsilon_in(low, high) if len(divided) == len(found) else None
    if value is not None and not all(e.fit.low <= value <= e.fit.high for e in divided):
        value = None
    under = _if_declared(divided, declared)
    start, end = (low, high) if under is None else under[1]
    proposals = tuple(c for c in (0.0, *CONVENTIONAL) if start <= c <= end)
    return [Solved("epsilon", value, (low, high), said, under, proposals)]


def _if_declared(found: Sequence[Explained], declared: NormSpec | None) -> tuple[Any, tuple[float, float]] | None:
    if declared is None:
        return None
    like = [e.fit for e in found if e.divides_like(declared)]
    if not like:
        return None
    low, high = _hull(like)
    return epsilon_in(low, high), (low, high)


def _hull(fits: Sequence[Fit]) -> tuple[float, float]:
    return min(f.low for f in fits), max(f.high for f in fits)


def _scale(found: Sequence[Explained], rows: Rows, said: str) -> list[Solved]:
    if rows.weight is None:
        return [Solved("scale", "none", evidence=said), unknown("scale_offset", "no weight is stored")]
    kind = "scalar" if rows.weight.numel() == 1 and rows.x.shape[-1] > 1 else "per_channel"
    scale = _agreed("scale", found, lambda e: kind if e.scaled else "none", said)
    applied = [e for e in found if e.scaled]
    if not applied:
        return [scale, unknown("scale_offset", "the weight is not applied")]
    return [scale, _agreed("scale_offset", applied, lambda e: e.affine.offset, said)]


def _bias(found: Sequence[Explained], rows: Rows, said: str) -> Solved:
    if rows.bias is None:
        return Solved("bias", False, evidence=said)
    return _agreed("bias", found, lambda e: e.affine.bias, said)


def _work(found: Sequence[Explained], rows: Rows, declared: NormSpec | None, said: str) -> Solved:
    if rows.dtype not in NARROW and name(rows.dtype) == "float32":
        return unknown("work_dtype", "float32 rows do not say whether they were widened first")
    if any(e.divisor is None for e in found):
        return unknown("work_dtype", "no moment is taken")
    own = name(rows.dtype)
    alias = "input" if declared is not None and declared.work_dtype == "input" else own
    return _agreed("work_dtype", found, lambda e: alias if name(e.how.work) == own else name(e.how.work), said)


def _cast(found: Sequence[Explained], rows: Rows, declared: NormSpec | None, said: str) -> Solved:
    """`none` and `cast_after_scale` round alike: the declared name of the two, else `cast_after_scale`."""
    if rows.dtype not in NARROW:
        return unknown("cast_order", f"{name(rows.dtype)} rows are not cast back")
    if all(e.how.work in NARROW for e in found):
        return unknown("cast_order", "the moments are narrow already")
    if not all(e.scaled or e.affine.bias for e in found):
        return unknown("cast_order", "no weight is applied")
    after = "none" if declared is not None and declared.cast_order == "none" else "cast_after_scale"
    return _agreed("cast_order", found, lambda e: "cast_before_scale" if e.how.before else after, said)
