"""The residual algebra of a stack x_{i+1} = a_i x_i + b_i u_i(x_i), as laws that are checked and not assumed.

`check` holds them on FP64 fixtures, where autograd gives the Jacobians; `on_stack` and `energy` hold on the values of a
run, within what rounding each add to its dtype allows. Source: derived (substitution and the chain rule); the identity
shortcut is He et al. 2016, Identity Mappings in Deep Residual Networks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import cast

import torch
from torch import Tensor

from blockaudit.records.conformance import Law
from blockaudit.records.norm_spec import NormSpec
from blockaudit.reference import norms

Scale = float | Tensor  # one number, or one per channel [D]
Update = Tensor | Sequence[Tensor]  # of one branch, or of the branches that one add sums
Branch = Callable[[Tensor], Tensor]
_matrix_norm = cast("Callable[..., Tensor]", torch.linalg.matrix_norm)  # pyright: ignore[reportUnknownMemberType]
DOUBLE = torch.finfo(torch.float64).eps / 2
# FP64 round-off of a few hundred operations; a wrong law is off by parts in ten.
CLOSE = 1e-11
# The least relative difference between two matrix products that no round-off makes.
APART = 1e-6

TELESCOPE = "x_L = x_l + sum_i u_i(x_i)"
EXPANSION = "x_L = (prod_j a_j) x_l + sum_i (prod_{j>i} a_j) b_i u_i(x_i)"
PRODUCT = "dx_L/dx_l = (a_{L-1} I + b_{L-1} J_{L-1}) ... (a_l I + b_l J_l)"
BOUND = "||dx_L/dx_l||_2 <= prod_i ||a_i I + b_i J_i||_2"
ENERGY = "||x + u||^2 / ||x||^2 = 1 + rho^2 + 2 rho c"


def check(seed: int = 0, width: int = 12, depth: int = 6) -> tuple[Law, ...]:
    """Every law on a random stack of `depth` (2 or more) Pre-RMSNorm branches of `width` channels in FP64.

    Errors are relative. The law that is an inequality gives the left side over the right one.
    """
    if depth < 2:
        raise ValueError(f"depth: one factor has no order; expected 2 or more, found {depth}")
    generator = torch.Generator().manual_seed(seed)
    branches = [_branch(generator, width) for _ in range(depth)]
    x = torch.randn(width, generator=generator, dtype=torch.float64)
    scales = torch.rand(2, depth, generator=generator, dtype=torch.float64) + 0.5
    a, b = ([float(s) for s in row] for row in scales)
    plain, scaled = _run(branches, x, [1.0] * depth, [1.0] * depth), _run(branches, x, a, b)
    return (
        _expansion("telescoping sum", TELESCOPE, *plain, [1.0] * depth, [1.0] * depth),
        _expansion("scaled-shortcut expansion", EXPANSION, *scaled, a, b),
        *_jacobians(branches, x, scaled[0], a, b),
        energy(plain[0][:-1], plain[1], plain[0][1:]),
    )


def on_stack(
    states: Sequence[Tensor],
    updates: Sequence[Update],
    shortcut_scales: Sequence[Scale],
    branch_scales: Sequence[Scale],
) -> tuple[Law, ...]:
    """The sums and the energy on captured values, of adds that follow one another with nothing between them.

    states: x_0 ... x_L, each [..., D]; updates: of each of the L adds, before `branch_scales` (give 1 where the capture
    is of the scaled update), several of them where one add sums several branches. Every value has the dtype in which it
    was added. No norm may stand between two adds (Post-LN): there only `energy` holds.
    """
    laws: list[Law] = []
    if all(_is_one(s) for s in (*shortcut_scales, *branch_scales)):
        laws.append(_expansion("telescoping sum", TELESCOPE, states, updates, shortcut_scales, branch_scales))
    laws.append(_expansion("scaled-shortcut expansion", EXPANSION, states, updates, shortcut_scales, branch_scales))
    laws.append(energy(states[:-1], updates, states[1:], shortcut_scales, branch_scales))
    return tuple(laws)


def energy(
    before: Sequence[Tensor],
    updates: Sequence[Update],
    after: Sequence[Tensor],
    shortcut_scales: Sequence[Scale] = (),
    branch_scales: Sequence[Scale] = (),
) -> Law:
    """||a x + b u||^2 / ||a x||^2 = 1 + rho^2 + 2 rho c, on every row of every add (rows that are zero left out).

    rho = ||b u|| / ||a x||, c their cosine, L2 norms, no delta. `after` is the sum itself, before any norm. The error
    is of the worst row, in units of ||a x||^2, beside what rounding allows there.
    """
    worst = _Worst()
    for i, (x, us, y) in enumerate(zip(before, updates, after, strict=True)):
        a, b = (scales[i] if scales else 1.0 for scales in (shortcut_scales, branch_scales))
        shortcut, terms = _terms(x, us, a, b)
        u = sum(terms[1:], terms[0])
        size, length = _l2(shortcut), _l2(u)
        used = (size != 0) & (length != 0)
        if not bool(used.any()):
            continue
        size, rho = size[used], length[used] / size[used]
        c = (shortcut * u).sum(-1)[used] / (size * length[used])
        slack = _l2(_rounding(x, us, y, a, b))[used] / size
        own = 4 * (x.shape[-1] + 8) * DOUBLE * (1 + rho).square()
        ratio = (_l2(y.double())[used] / size).square()
        worst.see(i, (ratio - (1 + rho.square() + 2 * rho * c)).abs(), 2 * (1 + rho) * slack + slack.square() + own)
    where = f"worst at add {worst.add}" if worst.ratio >= 0 else "no row to look at"
    return worst.law("energy identity", f"{ENERGY}; {where}")


class _Worst:
    """The place where an error is largest against what is allowed there; what is not finite is allowed nothing."""

    def __init__(self) -> None:
        self.error, self.allowed, self.ratio, self.add, self.non_finite = 0.0, 0.0, -1.0, 0, 0

    def see(self, add: int, error: Tensor, allowed: Tensor) -> None:
        known = error.isfinite() & allowed.isfinite()
        self.non_finite += int((~known).sum())
        ratio = torch.where(known, error / allowed.clamp_min(1e-300), -1.0).flatten()
        at = int(ratio.argmax()) if ratio.numel() else 0
        if ratio.numel() and (found := float(ratio[at])) > self.ratio:
            self.ratio, self.add = found, add
            self.error, self.allowed = float(error.flatten()[at]), float(allowed.flatten()[at])

    def law(self, name: str, says: str) -> Law:
        if self.non_finite:
            says += f"; {self.non_finite} values are not finite"
        return Law(name, self.error, self.allowed, self.error <= self.allowed and not self.non_finite, says)


def _expansion(
    name: str,
    equation: str,
    states: Sequence[Tensor],
    updates: Sequence[Update],
    shortcut_scales: Sequence[Scale],
    branch_scales: Sequence[Scale],
) -> Law:
    """x_L against its expansion from x_0, and each x_{i+1} against its own add.

    The error is of the worst element, relative to the root mean square of the state that it is in. Each add rounds what
    it sums and its products; what is lost at add i reaches x_L times the shortcuts after it.
    """
    depth, last, worst = len(updates), states[-1].double(), _Worst()
    after: list[Scale] = [1.0] * (depth + 1)
    for i in reversed(range(depth)):
        after[i] = after[i + 1] * _double(shortcut_scales[i])
    total = states[0].double() * after[0]
    summed, allowed = total.abs(), torch.zeros_like(last)
    for i in range(depth):
        step = (states[i], updates[i], states[i + 1], shortcut_scales[i], branch_scales[i])
        shortcut, terms = _terms(*step[:2], *step[3:])
        slack, y = _rounding(*step), states[i + 1].double()
        worst.see(i, (y - sum(terms, shortcut)).abs() / _rms(y), slack / _rms(y))
        for term in terms:
            total, summed = total + term * after[i + 1], summed + (term * after[i + 1]).abs()
        allowed = allowed + slack * abs(after[i + 1])
    own = 4 * (depth + 2) * DOUBLE * summed
    worst.see(depth, (last - total).abs() / _rms(last), (allowed + own) / _rms(last))
    where = f"all {depth} adds at once" if worst.add == depth else f"add {worst.add} of {depth} alone"
    return worst.law(name, f"{equation}; worst over {where}")


def _rms(x: Tensor) -> Tensor:
    return x.square().mean().sqrt().clamp_min(1e-300)


def _terms(x: Tensor, us: Update, a: Scale, b: Scale) -> tuple[Tensor, list[Tensor]]:
    """What one add sums, in FP64: a x, and b u of every branch."""
    return x.double() * _double(a), [u.double() * _double(b) for u in _parts(us)]


def _rounding(x: Tensor, us: Update, y: Tensor, a: Scale, b: Scale) -> Tensor:
    """The most that rounding can move y = a x + sum b u, elementwise: one unit per product and per sum, any order."""
    unit = max(torch.finfo(t.dtype).eps / 2 for t in (x, y, *_parts(us)))
    shortcut, terms = _terms(x, us, a, b)
    size = shortcut.abs() + sum((t.abs() for t in terms), torch.zeros_like(shortcut))
    products = (0 if _is_one(a) else 1) + (0 if _is_one(b) else 1)
    steps = len(terms) + products
    # 2 % for products of roundings, the least subnormal where a dtype runs out of exponents, and our own sum in FP64.
    tiny = max(torch.finfo(t.dtype).smallest_normal * torch.finfo(t.dtype).eps for t in (x, y, *_parts(us)))
    return 1.02 * steps * (unit * size + tiny) + 4 * (steps + 2) * DOUBLE * size


def _parts(us: Update) -> Sequence[Tensor]:
    return [us] if isinstance(us, Tensor) else us


def _double(scale: Scale) -> Scale:
    return scale.double() if isinstance(scale, Tensor) else scale


def _is_one(scale: Scale) -> bool:
    return bool((scale == 1).all()) if isinstance(scale, Tensor) else scale == 1


def _branch(generator: torch.Generator, width: int) -> Branch:
    """u(x) = W2 tanh(W1 RMSNorm(x)): a branch whose Jacobian depends on x and commutes with no other."""
    first, second = torch.randn(2, width, width, generator=generator, dtype=torch.float64) / width**0.5
    spec = NormSpec("rmsnorm", 1e-6, scale="none")
    return lambda x: second @ torch.tanh(first @ norms.apply(spec, x))


def _run(
    branches: Sequence[Branch], x: Tensor, a: Sequence[float], b: Sequence[float]
) -> tuple[list[Tensor], list[Tensor]]:
    """States x_0 ... x_L and the update of each add."""
    states, updates = [x], list[Tensor]()
    for i, branch in enumerate(branches):
        updates.append(branch(states[-1]))
        states.append(a[i] * states[-1] + b[i] * updates[-1])
    return states, updates


def _jacobians(
    branches: Sequence[Branch], x: Tensor, states: Sequence[Tensor], a: Sequence[float], b: Sequence[float]
) -> tuple[Law, ...]:
    """The ordered product against autograd through the whole stack, the reversed one, and the bound by norms."""
    whole = _jacobian(lambda v: _run(branches, v, a, b)[0][-1], x)
    eye = torch.eye(x.numel(), dtype=x.dtype)
    steps = [a[i] * eye + b[i] * _jacobian(branch, states[i]) for i, branch in enumerate(branches)]
    ordered = turned = eye
    for step in steps:
        ordered, turned = step @ ordered, turned @ step
    size = _l2(whole.flatten())
    error, apart = (float(_l2((product - whole).flatten()) / size) for product in (ordered, turned))
    ratio = float(_matrix_norm(whole, 2) / prod(float(_matrix_norm(step, 2)) for step in steps))
    ordered_law = Law("ordered Jacobian product", error, CLOSE, error <= CLOSE, f"{PRODUCT}; against autograd")
    says = "the product in reverse order; the error must be at least the bound: Jacobians do not commute"
    turned_law = Law("reversed Jacobian product differs", apart, APART, apart >= APART, says)
    says = f"{BOUND}; the left side over the right one"
    return ordered_law, turned_law, Law("singular-value bound", ratio, 1.0, ratio <= 1 + CLOSE, says)


def _l2(x: Tensor) -> Tensor:
    return x.square().sum(-1).sqrt()


def _jacobian(function: Branch, x: Tensor) -> Tensor:
    """Derivative of each output (row) by each input (column), [D, D]."""
    v = x.detach().requires_grad_()
    y = function(v)
    rows = [torch.autograd.grad(y[i], v, retain_graph=True)[0] for i in range(y.numel())]
    return torch.stack(rows)
