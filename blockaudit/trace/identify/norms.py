"""What a norm is, from its input and output rows: every formula that explains all bits, and what those agree on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import torch
from torch import Tensor

from blockaudit.records.norm_spec import NormSpec
from blockaudit.trace.identify import dyt
from blockaudit.trace.identify.epsilon import Fit, fit
from blockaudit.trace.identify.fields import Explained, solved
from blockaudit.trace.identify.formulas import Affine, Divisor, Rounds, Rows, Spelling, affines, reciprocals, rounds
from blockaudit.trace.identify.probes import probe_rows
from blockaudit.trace.identify.rounding import NARROW, Interval
from blockaudit.trace.identify.solved import Solved
from blockaudit.trace.identify.typed import unique

Ask = Callable[[Tensor], Tensor]

# Elements that are looked at: more say no more than float32's own rounding allows.
_BUDGET = 2**20
_QUICK = 4
# What the arithmetic may be off, as a multiple of what torch's is; the next only where the one before explains nothing.
_SLACKS = (1.0, 4.0)
# Of two divisors that are both possible, the one whose log likelihood is this far below is dropped: so far, and so far
# again for each row, since a sum with epsilon rounds alike in all rows between two powers of two.
_FAR = 9.0
_FAR_EACH = 0.3


def identify_norm(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype,
    ask: Ask | None = None,
    declared: NormSpec | None = None,
    alpha: float | None = None,
    seed: int = 0,
) -> list[Solved]:
    """The fields of the norm that made y of x ([..., D], as captured in `dtype`), one `Solved` each.

    weight and bias: [D] or one number, as stored. `ask` runs the candidate's own norm on [n, D] rows in `dtype`;
    without it the captured rows are all there is. `alpha`: the stored scalar of a dyt. `declared` chooses
    between names of one function, and gives `if_declared`; it never decides a field.
    """
    captured = rows_of(x, y, weight, bias, dtype)
    if ask is None:
        return solved(explanations(captured, alpha), captured, declared)
    probe = probe_rows(x.shape[-1], dtype, seed)
    asked = rows_of(probe, ask(probe), weight, bias, dtype)
    both = Rows(torch.cat((captured.x, asked.x)), torch.cat((captured.y, asked.y)), weight, bias, dtype)
    found = explanations(both, alpha)
    if not found and len(captured.x) and explanations(asked, alpha):
        return solved([], both, declared, "the norm that was asked does not give the captured rows")
    return solved(found, both, declared)


def explains(rows: Rows, spec: NormSpec, alpha: float | None = None) -> bool:
    """Whether some rounding of this spec gives these rows bit for bit; its epsilon, offset and bias are the spec's."""
    return any(
        e.divides_like(spec) and (e.divisor is None or e.fit.low <= (spec.epsilon or 0.0) <= e.fit.high)
        for e in explanations(rows, alpha, spec)
    )


def rows_of(x: Tensor, y: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Rows:
    """Finite rows, each once, the smallest first; at most a budget's worth, half of them the smallest."""
    size = x.shape[-1]
    flat = torch.cat((x.detach().reshape(-1, size), y.detach().reshape(-1, size)), -1).to(dtype).cpu()
    flat = flat[torch.isfinite(flat).all(-1)]
    if len(flat):
        flat = unique(flat.double(), dim=0).to(dtype)
    order = flat[:, :size].double().square().mean(-1).argsort()
    most = max(_BUDGET // size, 2 * _QUICK)
    if len(order) > most:
        rest = order[most // 2 :]
        order = torch.cat((order[: most // 2], rest[:: -(-len(rest) // (most // 2))]))
    flat = flat[order]
    w, b = (None if v is None else v.detach().cpu().reshape(-1) for v in (weight, bias))
    return Rows(flat[:, :size].contiguous(), flat[:, size:].contiguous(), w, b, dtype)


def explanations(rows: Rows, alpha: float | None = None, like: NormSpec | None = None) -> list[Explained]:
    """Every formula under which no row is left over, with its epsilons; none where nothing explains them all.

    `like`: only those that apply the weight and the bias as this spec does.
    """
    for slack in _SLACKS if len(rows.x) else ():
        found = [*_divided(rows, slack, like), *_undivided(rows, slack, alpha, like)]
        # What holds to float64's own precision is no float32 arithmetic, and a known sum comes before an unknown one.
        exact = [e for e in found if e.how.work == torch.float64] or [e for e in found if not e.fit.loose]
        if found:
            return exact or found
    return []


def _ways(rows: Rows, like: NormSpec | None) -> Iterator[tuple[Affine, Rounds]]:
    for affine in affines(rows.weight, rows.bias):
        if like is not None and not _applied_like(affine, rows, like):
            continue
        yield from ((affine, how) for how in rounds(rows.dtype, affine, rows.weight is not None))


def _applied_like(affine: Affine, rows: Rows, spec: NormSpec) -> bool:
    offset = None if rows.weight is None or spec.scale == "none" else spec.scale_offset
    return affine.offset == offset and affine.bias == (spec.bias and rows.bias is not None)


def _divided(rows: Rows, slack: float, like: NormSpec | None) -> Iterator[Explained]:
    quick = _quick(rows)
    for (affine, how), center in product(_ways(rows, like), (False, True)):
        if _possible(quick, center, affine, how, slack) is None:
            continue
        r = _possible(rows, center, affine, how, slack)
        if r is None:
            continue
        sharp = reciprocals(rows, center, affine, how, 0.0) if rows.dtype in NARROW else None
        ways = _divisors(center, how)
        fits = [(divisor, fit(rows, r, divisor, how, spelling, slack, sharp)) for divisor, spelling in ways]
        best = max((f.likelihood for _, f in fits if f.holds), default=0.0)
        for divisor, found in fits:
            if found.holds and found.likelihood >= best - _FAR - _FAR_EACH * found.rows:
                yield Explained(divisor.family, divisor, affine, how, found)


def _possible(rows: Rows, center: bool, affine: Affine, how: Rounds, slack: float) -> Interval | None:
    r = reciprocals(rows, center, affine, how, slack)
    return r if bool((r[0] <= r[1]).all()) else None


def _divisors(center: bool, how: Rounds) -> Iterator[tuple[Divisor, Spelling]]:
    spellings = [Spelling()]
    if how.work in NARROW:
        spellings = [Spelling(var, divide) for var in {False, center} for divide in (False, True)]
    corrections = (0, 1) if center else (0,)
    for family in ("layernorm",) if center else ("rmsnorm", "scalenorm"):
        for outside, correction, spelling in product((False, True), corrections, spellings):
            yield Divisor(family, outside, correction), spelling


def _undivided(rows: Rows, slack: float, alpha: float | None, like: NormSpec | None) -> Iterator[Explained]:
    """No division: the row itself (r is 1 in every row), and Dynamic Tanh."""
    quick = _quick(rows)
    for affine, how in _ways(rows, like):
        if _bare(quick, affine, how, slack) and _bare(rows, affine, how, slack):
            yield Explained("none", None, affine, how, Fit(0.0, 0.0, len(rows.x)))
        if dyt.alphas(quick, affine, how, slack) is None:
            continue
        between = dyt.alphas(rows, affine, how, slack)
        if between is not None and (alpha is None or between[0] <= alpha <= between[1]):
            yield Explained("dyt", None, affine, how, Fit(*between, len(rows.x)))


def _bare(rows: Rows, affine: Affine, how: Rounds, slack: float) -> bool:
    low, high = reciprocals(rows, False, affine, how, slack)
    return bool(((low <= 1) & (high >= 1)).all())


def _quick(rows: Rows) -> Rows:
    """A few rows of all sizes, on which most formulas fail."""
    return rows.take(torch.linspace(0, len(rows.x) - 1, min(_QUICK, len(rows.x))).long())
