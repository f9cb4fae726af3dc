"""Small language models as written by different hands, with no telling name, and what each of them is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

W, V, HEADS = 12, 31, 3


class Mix(nn.Module):
    """Causal attention by hand."""

    def __init__(self, last: bool = True) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(W, W), nn.Linear(W, W), nn.Linear(W, W)
        self.z = nn.Linear(W, W) if last else None

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = (f(x).view(n, t, HEADS, -1).transpose(1, 2) for f in (self.a, self.b, self.c))
        s = q @ k.transpose(-2, -1) / math.sqrt(W // HEADS)
        s = s.masked_fill(torch.ones(t, t, dtype=torch.bool).tril().logical_not(), float("-inf"))
        y = (s.softmax(-1) @ v).transpose(1, 2).reshape(n, t, W)
        return self.z(y) if self.z is not None else y


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(W, 2 * W), nn.Linear(2 * W, W)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.gelu(self.a(x)))


class Own(nn.Module):
    """A norm given by its function of (x, g, b)."""

    def __init__(self, f: Callable[[Tensor, Tensor, Tensor], Tensor], width: int = W) -> None:
        super().__init__()
        self.f = f
        self.g, self.b = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x, self.g, self.b)


class Net(nn.Module):
    """Two layers of a step given from outside, between a table and a projection."""

    def __init__(self, step: Callable[[Any, Tensor], Tensor], norm: Callable[[], nn.Module], last: bool = True) -> None:
        super().__init__()
        self.t, self.o = nn.Embedding(V, W), nn.Linear(W, V, bias=False)
        self.k = nn.ModuleList([Cell(norm) for _ in range(2)])
        self.l = norm() if last else nn.Identity()
        self.step = step

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.t(input_ids)
        for c in self.k:
            x = self.step(c, x)
        return self.o(self.l(x))


class Cell(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.m, self.f, self.h = Mix(), Two(), Mix(last=False)
        self.e, self.g, self.u, self.w = norm(), norm(), norm(), norm()
        self.p, self.q = nn.Parameter(torch.rand(W)), nn.Parameter(torch.rand(()))
        self.r, self.s = nn.Linear(W, W), nn.Linear(W, W)


@dataclass(frozen=True)
class Is:
    """A norm's truth: (family, epsilon, its location, variance correction, offset)."""

    family: str = "layernorm"
    epsilon: float | None = 1e-5
    location: str | None = "inside"
    correction: int | None = 0
    offset: int = 0


@dataclass(frozen=True)
class Truth:
    """One layer as it is: per add its branches in order, `(kind, norm in?, norm out?, scale)`."""

    adds: tuple[tuple[tuple[str, bool, bool, float | None], ...], ...]
    norm: Is = field(default_factory=Is)
    shortcut: float | tuple[float | None, ...] | None = 1.0  # of every add, or of each
    post: tuple[bool, ...] = (False,)  # of each add; the last entry goes on
    final: bool = True
    shifted: bool = False  # the first norm is before all adds, and the last add has none after it
    readable: bool = True  # False: nothing that the contract has words for, so that no reading is right


A, M = "causal_self_attention", "mlp"
PRE = (((A, True, False, 1.0),), ((M, True, False, 1.0),))
POST = (((A, False, False, 1.0),), ((M, False, False, 1.0),))
OUT = (((A, False, True, 1.0),), ((M, False, True, 1.0),))
BOTH = (((A, True, True, 1.0),), ((M, True, True, 1.0),))
PAR = (((A, True, False, 1.0), (M, True, False, 1.0)),)


def scaled(adds: Any, *by: float | None) -> Any:
    """The same adds with other branch scales, one for each add."""
    return tuple(tuple((*b[:3], s) for b in add) for add, s in zip(adds, by, strict=True))


def scaled2(adds: Any, *by: float) -> Any:
    """The same single add with a scale for each of its branches."""
    return (tuple((*b[:3], s) for b, s in zip(adds[0], by, strict=True)),)


# -- norms, each in a Pre-LN model ------------------------------------------------------------------------------------


def pre(c: Any, x: Tensor) -> Tensor:
    x = x + c.m(c.e(x))
    return x + c.f(c.g(x))


def _ln() -> nn.Module:
    return nn.LayerNorm(W)


def _var_mean(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
    v, m = torch.var_mean(x, -1, keepdim=True, unbiased=False)
    return (x - m) * torch.rsqrt(v + 1e-6) * g + b


def _einsum(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
    m = torch.einsum("...d,...d->...", x, x)[..., None] / W
    return torch.einsum("...d,d->...d", x / (m + 1e-6) ** 0.5, g)


def _wide(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * g


def _by_hand(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
    d = x - x.mean(-1, keepdim=True)
    return torch.addcmul(b, d / torch.sqrt((d * d).mean(-1, keepdim=True) + 1e-5), g)


def _over_time(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) * torch.rsqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5) * g + b


class Batch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.BatchNorm1d(W)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x.transpose(1, 2)).transpose(1, 2)


class Group(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.GroupNorm(HEADS, W)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x.transpose(1, 2)).transpose(1, 2)


class Tanh(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(W)), nn.Parameter(torch.ones(W))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.a * x) * self.b + self.c


class Single(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.a * x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5)


def own(f: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Own(f)


RMS = Is("rmsnorm", 1e-6, "inside", None)
NO = Is(epsilon=None)
NORMS: dict[str, tuple[Callable[[], nn.Module], Is]] = {
    "fused layer norm": (own(lambda x, g, b: F.layer_norm(x, (W,), g, b, 1e-12)), Is(epsilon=1e-12)),
    "fused, no affine": (own(lambda x, g, b: F.layer_norm(x, (W,))), Is()),
    "fused rms": (lambda: nn.RMSNorm(W, eps=1e-6), RMS),
    "fused rms, functional": (own(lambda x, g, b: F.rms_norm(x, (W,), g, 1e-6)), RMS),
    "rsqrt": (own(lambda x, g, b: x * torch.rsqrt((x * x).mean(-1, True) + 1e-6) * g), RMS),
    "one plus": (own(lambda x, g, b: x / (x.square().mean(-1, True) + 1e-6).sqrt() * (1 + g)),
                 Is("rmsnorm", 1e-6, "inside", None, 1)),
    "power": (own(lambda x, g, b: g * x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).pow(-0.5)), RMS),
    "vector norm": (own(lambda x, g, b: x * W**0.5 / torch.linalg.vector_norm(x, dim=-1, keepdim=True) * g),
                    Is("rmsnorm", 0.0, "inside", None)),
    "root plus epsilon": (own(lambda x, g, b: x / (x.norm(dim=-1, keepdim=True) * W**-0.5 + 1e-6) * g),
                          Is("rmsnorm", 1e-6, "outside", None)),
    "std plus epsilon": (own(lambda x, g, b: g * (x - x.mean(-1, True)) / (x.std(-1, keepdim=True) + 1e-6) + b),
                         Is("layernorm", 1e-6, "outside", 1)),
    "unbiased inside": (own(lambda x, g, b: (x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt() * g + b),
                        Is(correction=1)),
    "normalize": (own(lambda x, g, b: F.normalize(x, dim=-1) * g), Is("scalenorm", 0.0, None, None)),
    "normalize, widened": (own(lambda x, g, b: F.normalize(x, dim=-1) * W**0.5 * g),
                           Is("rmsnorm", 0.0, "inside", None)),
    "scalar gain": (Single, Is("scalenorm", 0.0, None, None)),
    "var mean": (own(_var_mean), Is(epsilon=1e-6)),
    "einsum": (own(_einsum), RMS),
    "in float32": (own(_wide), RMS),
    "addcmul": (own(_by_hand), Is()),
    "tanh": (Tanh, Is("dyt", None, None, None)),
    "over time": (own(_over_time), NO),
    "batch": (Batch, NO),
    "groups": (Group, NO),
    "max": (own(lambda x, g, b: x / (x.abs().amax(-1, True) + 1e-6) * g), NO),
    "mean of absolutes": (own(lambda x, g, b: x / (x.abs().mean(-1, True) + 1e-6) * g), NO),
    "wrong exponent": (own(lambda x, g, b: x * (x.pow(2).mean(-1, True) + 1e-6).pow(-0.4) * g), NO),
    "over all": (own(lambda x, g, b: F.layer_norm(x, x.shape[1:])), NO),
    "sum of squares": (
        own(lambda x, g, b: x * torch.rsqrt(x.pow(2).sum(-1, True) + 1e-6) * g),
        Is("scalenorm", 1e-6, "inside", None),
    ),
}  # fmt: skip


# -- sums and topologies --------------------------------------------------------------------------------------------


def in_place(c: Any, x: Tensor) -> Tensor:
    x.add_(c.m(c.e(x)))
    x += c.f(c.g(x))
    return x


def halves(c: Any, x: Tensor) -> Tensor:
    x = torch.add(x, c.m(c.e(x)), alpha=0.5)
    return torch.add(x, c.f(c.g(x)), alpha=0.25)


def minus(c: Any, x: Tensor) -> Tensor:
    x = x - c.m(c.e(x))
    return x.sub(c.f(c.g(x)), alpha=0.5)


def layer_scale(c: Any, x: Tensor) -> Tensor:
    x = torch.addcmul(x, c.m(c.e(x)), c.p)
    return x + c.p * c.f(c.g(x))


def lerped(c: Any, x: Tensor) -> Tensor:
    x = torch.lerp(x, c.m(c.e(x)), 0.25)
    return x.lerp(c.f(c.g(x)), 0.25)


def fused_product(c: Any, x: Tensor) -> Tensor:
    n, t, _ = x.shape
    x = torch.addmm(x.reshape(n * t, W), c.h(c.e(x)).reshape(n * t, W), c.r.weight.t()).view(n, t, W)
    y = F.gelu(c.r(c.g(x)))
    return torch.baddbmm(x, y, c.s.weight.t().expand(n, W, W))


def stacked(c: Any, x: Tensor) -> Tensor:
    x = torch.stack([x, c.m(c.e(x))]).sum(0)
    return sum([x, c.f(c.g(x))])


def written(c: Any, x: Tensor) -> Tensor:
    x[:, :, :] = x + c.m(c.e(x))
    x.view(-1, W)[:] += c.f(c.g(x)).view(-1, W)
    return x


def part_written(c: Any, x: Tensor) -> Tensor:
    x = x + c.m(c.e(x))
    x[..., : W // 2] += c.f(c.g(x))[..., : W // 2]
    return x


def indexed(c: Any, x: Tensor) -> Tensor:
    x = x.index_add(1, torch.arange(x.shape[1]), c.m(c.e(x)))
    return x + c.f(c.g(x))


def rezero(c: Any, x: Tensor) -> Tensor:
    x = x + c.q * c.m(x)
    return x + c.q * c.f(x)


def deep(c: Any, x: Tensor) -> Tensor:
    x = c.e(x * 1.5 + c.m(x))
    return c.g(1.5 * x + c.f(x))


def post(c: Any, x: Tensor) -> Tensor:
    x = c.e(x + c.m(x))
    return c.g(x + c.f(x))


def peri(c: Any, x: Tensor) -> Tensor:
    x = x + c.u(c.m(c.e(x)))
    return x + c.w(c.f(c.g(x)))


def out(c: Any, x: Tensor) -> Tensor:
    x = x + c.e(c.m(x))
    return x + c.g(c.f(x))


def parallel(c: Any, x: Tensor) -> Tensor:
    y = c.e(x)
    return x + c.m(y) + c.f(y)


def parallel_two(c: Any, x: Tensor) -> Tensor:
    return c.f(c.g(x)) + (c.m(c.e(x)) + x)


def sandwich(c: Any, x: Tensor) -> Tensor:
    x = c.u(x + c.m(c.e(x)))
    return c.w(x + c.f(c.g(x)))


def one_norm(c: Any, x: Tensor) -> Tensor:
    x = x + c.m(c.e(x))
    return x + c.f(c.e(x))


def normalised(c: Any, x: Tensor) -> Tensor:
    y = c.e(x)
    y = y + c.m(y)
    y = c.g(y)
    return y + c.f(y)


def highway(c: Any, x: Tensor) -> Tensor:
    g = torch.sigmoid(c.r(x))
    x = g * x + (1 - g) * c.m(c.e(x))
    return x + c.f(c.g(x))


def gated(c: Any, x: Tensor) -> Tensor:
    y = c.e(x)
    x = x + torch.sigmoid(c.r(y)) * c.m(y)
    return x + c.f(c.g(x))


def drop_path(c: Any, x: Tensor) -> Tensor:
    x = x + F.dropout(c.m(c.e(x)), 0.3, c.training)
    y = c.f(c.g(x))
    return x + (y * torch.bernoulli(torch.full((x.shape[0], 1, 1), 0.7)) / 0.7 if c.training else y)


def three(c: Any, x: Tensor) -> Tensor:
    x = x + c.m(c.e(x))
    x = x + c.f(c.g(x))
    return x + c.s(F.silu(c.r(c.u(x))))


def half_bare(c: Any, x: Tensor) -> Tensor:
    x = x + c.m(x)
    return x + c.f(c.g(x))


def doubled(c: Any, x: Tensor) -> Tensor:
    x = x + c.m(c.u(c.e(x)))
    return x + c.f(c.g(x))


def shuffled(c: Any, x: Tensor) -> Tensor:
    x = x.flip(-1) + c.m(c.e(x))
    return x + c.f(c.g(x))


def vector_shortcut(c: Any, x: Tensor) -> Tensor:
    x = x * c.p + c.m(c.e(x))
    return x * c.p + c.f(c.g(x))


def squared(c: Any, x: Tensor) -> Tensor:
    x = x + c.m(c.e(x))
    x = x + c.f(c.g(x))
    return x * x.abs()


def rescaled(c: Any, x: Tensor) -> Tensor:
    x = x + c.m(c.e(x) * 2)
    return x + c.f(c.g(x))


def times(c: Any, x: Tensor) -> Tensor:
    x = x + c.m(c.e(x))
    return x * c.f(c.g(x))


def both_scaled(c: Any, x: Tensor) -> Tensor:
    y = c.e(x)
    return x + 0.5 * (c.m(y) + c.f(y))


def both_scaled_apart(c: Any, x: Tensor) -> Tensor:
    y = c.e(x)
    return x + torch.add(c.m(y), c.f(y), alpha=0.5)


def state_in_norm_out(c: Any, x: Tensor) -> Tensor:
    """The MLP's update is added to the normalised input, not to the state."""
    x = x + c.m(c.e(x))
    y = c.g(x)
    return y + c.f(y)


def divided(c: Any, x: Tensor) -> Tensor:
    x = (x + c.m(c.e(x))) / math.sqrt(2)
    return (x + c.f(c.g(x))) * 0.5


def averaged(c: Any, x: Tensor) -> Tensor:
    return torch.stack([x, c.m(c.e(x)), c.f(c.g(x))]).mean(0)


def raw_and_normed(c: Any, x: Tensor) -> Tensor:
    x = x + c.m(x + c.e(x))
    return x + c.f(c.g(x))


def interpolated(c: Any, x: Tensor) -> Tensor:
    x = c.e(x + c.p * (c.u(c.m(x)) - x))
    return c.g(torch.lerp(x, c.w(c.f(x)), c.p))


def shifted_tokens(c: Any, x: Tensor) -> Tensor:
    x = x + c.m(c.e(x))
    y = c.g(x)
    return x + c.f(y + F.pad(y, (0, 0, 1, 0))[:, :-1])


def swapped_rows(c: Any, x: Tensor) -> Tensor:
    x = x + c.m(c.e(x))
    y = c.g(x)
    return x + c.f(y[:, [1, 0, *range(2, y.shape[1])]])


def times_itself(c: Any, x: Tensor) -> Tensor:
    """An activation that multiplies one projection with itself: no gate."""
    x = x + c.m(c.e(x))
    y = c.r(c.g(x))
    return x + c.s(torch.where(y > 0, c.q * y * y + y, y * torch.sigmoid(y)))


def in_blocks(c: Any, x: Tensor) -> Tensor:
    """Attention inside blocks of four rows."""
    n, t, _ = x.shape
    y = F.pad(c.e(x), (0, 0, 0, -t % 4)).view(n, -1, 4, W)
    x = x + c.s((c.r(y) @ y.transpose(-2, -1)).softmax(-1) @ y).view(n, -1, W)[:, :t]
    return x + c.f(c.g(x))


def over_examples(c: Any, x: Tensor) -> Tensor:
    x = x + c.m(c.e(x))
    y = c.g(x)
    return x + c.f(y - y.mean(0, keepdim=True))


def long_way(c: Any, x: Tensor) -> Tensor:
    y = x + c.m(c.e(x))
    return x + c.f(c.g(y))


HALF = (((A, True, False, 1.0),), ((M, False, False, 1.0),))
MIXING = (((A, True, False, 1.0),), (("unclassified", True, False, 1.0),))
THREE = (*PRE, ((M, True, False, 1.0),))
MIXED = (((A, False, False, 1.0),), ((M, True, False, 1.0),))
STEPS: dict[str, tuple[Callable[[Any, Tensor], Tensor], Truth]] = {
    "pre": (pre, Truth(PRE)),
    "in place": (in_place, Truth(PRE)),
    "alpha": (halves, Truth(scaled(PRE, 0.5, 0.25))),
    "minus": (minus, Truth(scaled(PRE, -1.0, -0.5))),
    "layer scale": (layer_scale, Truth(scaled(PRE, None, None))),
    "lerp": (lerped, Truth(scaled(PRE, 0.25, 0.25), shortcut=0.75)),
    "addmm": (fused_product, Truth(PRE)),
    "stack": (stacked, Truth(PRE)),
    "written": (written, Truth(PRE)),
    "part written": (part_written, Truth(PRE, readable=False)),
    "index_add": (indexed, Truth(PRE)),
    "rezero": (rezero, Truth(scaled(POST, None, None))),
    "deep": (deep, Truth(POST, shortcut=1.5, post=(True,), final=False)),
    "post": (post, Truth(POST, post=(True,), final=False)),
    "peri": (peri, Truth(BOTH)),
    "out": (out, Truth(OUT)),
    "parallel": (parallel, Truth(PAR)),
    "parallel, two norms": (parallel_two, Truth((PAR[0][::-1],))),
    "sandwich": (sandwich, Truth(PRE, post=(True,), final=False)),
    "one norm, two sites": (one_norm, Truth(PRE)),
    "normalised shortcut": (normalised, Truth(POST, post=(True,), final=False, shifted=True)),
    "highway": (highway, Truth(PRE, readable=False)),
    "gated": (gated, Truth(PRE)),
    "drop path": (drop_path, Truth(PRE)),
    "three": (three, Truth(THREE)),
    "half bare": (half_bare, Truth(MIXED)),
    "rescaled": (rescaled, Truth(PRE, readable=False)),
    "product": (times, Truth(PRE, readable=False)),
    "scaled together": (both_scaled, Truth(scaled2(PAR, 0.5, 0.5))),
    "scaled apart": (both_scaled_apart, Truth(scaled2(PAR, 1.0, 0.5))),
    "normalised once": (state_in_norm_out, Truth(HALF, post=(True, False))),
    "divided": (divided, Truth(scaled(PRE, 1 / math.sqrt(2), 0.5), shortcut=(1 / math.sqrt(2), 0.5))),
    "averaged": (averaged, Truth(PRE, readable=False)),
    "raw and normed": (raw_and_normed, Truth(PRE, readable=False)),
    "no final": (pre, Truth(PRE, final=False)),
    "double norm": (doubled, Truth(PRE, readable=False)),
    "shuffled shortcut": (shuffled, Truth(PRE, readable=False)),
    "vector shortcut": (vector_shortcut, Truth(PRE, shortcut=None)),
    "squared state": (squared, Truth(PRE, readable=False)),
    "interpolated": (interpolated, Truth(scaled(OUT, None, None), shortcut=(1.0, None), post=(True,), final=False)),
    "shifted tokens": (shifted_tokens, Truth(MIXING)),
    "swapped rows": (swapped_rows, Truth(MIXING)),
    "times itself": (times_itself, Truth(PRE)),
    "in blocks": (in_blocks, Truth((MIXING[1], PRE[1]))),
    "over examples": (over_examples, Truth(MIXING, readable=False)),
    "shortcut from afar": (long_way, Truth(PRE, readable=False)),
}


class Twice(nn.Module):
    """Two final norms, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LayerNorm(W), nn.LayerNorm(W, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


def _replaced(net: Net, norm: Callable[[], nn.Module]) -> Net:
    """The net with one norm of its last layer of another kind."""
    net.k[1].e = norm()
    return net


def _mixed() -> nn.Module:
    """A model in bfloat16 whose norms keep their weights in float32."""

    def norm(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, True) + 1e-6) * g).to(x.dtype)

    net = Net(pre, own(norm)).to(torch.bfloat16)
    for module in net.modules():
        if isinstance(module, Own):
            module.float()
    return net


def models(step: Callable[[Any, Tensor], Tensor] = pre) -> Net:
    """A model for the tests of --candidate."""
    return Net(step, _ln)


def cases() -> dict[str, tuple[Callable[[], nn.Module], Truth]]:
    """Every model by what it is called here, with its truth."""
    found: dict[str, tuple[Callable[[], nn.Module], Truth]] = {}
    for name, (norm, what) in NORMS.items():
        found[f"norm: {name}"] = (lambda n=norm: Net(pre, n), Truth(PRE, what, readable=what is not NO))
    for name, (step, truth) in STEPS.items():
        found[f"step: {name}"] = (lambda s=step, t=truth: Net(s, _ln, t.final), truth)

    for name, (norm, what) in NORMS.items():
        for place, step in (("entry", pre), ("exit", out)):
            if what is NO:
                found[f"{place}: {name}"] = (
                    lambda n=norm, s=step: _replaced(Net(s, _ln), n),
                    Truth(PRE, readable=False),
                )
    low = Truth(PRE, RMS)
    found["bfloat16: in float32"] = (lambda: Net(pre, own(_wide)).to(torch.bfloat16), low)
    found["bfloat16: fused"] = (lambda: Net(pre, _ln).to(torch.bfloat16), Truth(PRE))
    found["bfloat16: weight in float32"] = (_mixed, low)

    def twice() -> nn.Module:
        net = Net(pre, _ln)
        net.l = Twice()
        return net

    found["final: two"] = (twice, Truth(PRE, readable=False))
    return found
