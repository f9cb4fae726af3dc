"""Small decoders as written by different hands, each dropping something at a place of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

W, V, HEADS = 12, 31, 3
P = 0.25


class Attend(nn.Module):
    """Causal attention; `on` drops what the caller asks for: scores, probabilities, mixed rows."""

    def __init__(self, **on: nn.Module) -> None:
        super().__init__()
        self.i, self.o = nn.Linear(W, 3 * W), nn.Linear(W, W)
        self.on = nn.ModuleDict(on)

    def drop(self, name: str, x: Tensor) -> Tensor:
        return self.on[name](x) if name in self.on else x

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = self.i(x).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        s = self.drop("scores", q @ k.transpose(-2, -1) / math.sqrt(W // HEADS))
        s = s.masked_fill(torch.ones(t, t, dtype=torch.bool).tril().logical_not(), float("-inf"))
        y = self.drop("probabilities", s.softmax(-1)) @ v
        return self.o(self.drop("rows", y.transpose(1, 2).reshape(n, t, W)))


class Fused(nn.Module):
    """The same through scaled_dot_product_attention, which drops probabilities itself."""

    def __init__(self) -> None:
        super().__init__()
        self.i, self.o = nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = self.i(x).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=P if self.training else 0.0)
        return self.o(y.transpose(1, 2).reshape(n, t, W))


class Two(nn.Module):
    def __init__(self, hidden: nn.Module | None = None, before: nn.Module | None = None) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(W, 2 * W), nn.Linear(2 * W, W)
        self.hidden, self.before = hidden or nn.Identity(), before or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.hidden(F.gelu(self.before(self.a(x)))))


class DropPath(nn.Module):
    """One draw an example, as timm writes it."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.drop_prob = p

    def forward(self, x: Tensor) -> Tensor:
        if self.drop_prob == 0.0 or not self.training:
            return x
        keep = 1 - self.drop_prob
        return x * x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep).div_(keep)


class FloorPath(nn.Module):
    """The same with a uniform number that is rounded down."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        keep = 1 - self.p
        mask = (keep + torch.rand((x.shape[0], 1, 1), dtype=x.dtype)).floor()
        return x.div(keep) * mask


class Masked(nn.Module):
    """Elements by a comparison, and what is kept is not scaled."""

    def forward(self, x: Tensor) -> Tensor:
        return x.masked_fill(torch.rand_like(x) < P, 0.0) if self.training else x


class Channels(nn.Module):
    """One draw a channel, for all rows of an example."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout1d(x.transpose(1, 2), P, self.training).transpose(1, 2)


class Rows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * F.dropout(torch.ones(*x.shape[:2], 1, dtype=x.dtype), P, self.training)


class Always(nn.Module):
    """In eval mode too: the default of the function."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, P)


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + torch.randn_like(x)) if self.training else x


Step = Callable[[Any, Tensor], Tensor]


class Cell(nn.Module):
    def __init__(
        self, attend: Callable[[], nn.Module], mlp: Callable[[], nn.Module], drop: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        self.m, self.f = attend(), mlp()
        self.e, self.g = nn.LayerNorm(W), nn.LayerNorm(W)
        self.d = drop()


def pre(c: Any, x: Tensor) -> Tensor:
    x = x + c.d(c.m(c.e(x)))
    return x + c.d(c.f(c.g(x)))


def bare(c: Any, x: Tensor) -> Tensor:
    x = x + c.m(c.e(x))
    return x + c.f(c.g(x))


def post(c: Any, x: Tensor) -> Tensor:
    x = c.e(x + c.d(c.m(x)))
    return c.g(x + c.d(c.f(x)))


def after(c: Any, x: Tensor) -> Tensor:
    x = c.d(x + c.m(c.e(x)))
    return c.d(x + c.f(c.g(x)))


def after_post(c: Any, x: Tensor) -> Tensor:
    x = c.e(c.d(x + c.m(x)))
    return c.g(c.d(x + c.f(x)))


def shortcut(c: Any, x: Tensor) -> Tensor:
    x = c.d(x) + c.m(c.e(x))
    return c.d(x) + c.f(c.g(x))


def entering(c: Any, x: Tensor) -> Tensor:
    x = x + c.m(c.d(c.e(x)))
    return x + c.f(c.d(c.g(x)))


def scaled(c: Any, x: Tensor) -> Tensor:
    x = x + 0.5 * c.d(c.m(c.e(x)))
    return x + c.d(0.5 * c.f(c.g(x)))


def parallel(c: Any, x: Tensor) -> Tensor:
    return x + c.d(c.m(c.e(x)) + c.f(c.g(x)))


class Net(nn.Module):
    def __init__(
        self,
        step: Step,
        drop: Callable[[], nn.Module] = lambda: nn.Dropout(P),
        attend: Callable[[], nn.Module] = Attend,
        mlp: Callable[[], nn.Module] = Two,
        embedding: nn.Module | None = None,
        last: nn.Module | None = None,
        layers: int = 2,
    ) -> None:
        super().__init__()
        self.t, self.o = nn.Embedding(V, W), nn.Linear(W, V, bias=False)
        self.k = nn.ModuleList([Cell(attend, mlp, drop) for _ in range(layers)])
        self.l = nn.Identity() if step in (post, after_post) else nn.LayerNorm(W)
        self.begin, self.finish = embedding or nn.Identity(), last or nn.Identity()
        self.step = step

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.begin(self.t(input_ids))
        for c in self.k:
            x = self.step(c, x)
        return self.o(self.finish(self.l(x)))


def deepening(layers: int, p: float) -> Net:
    """DropPath that grows linearly from nothing at the first layer to p at the last."""
    net = Net(pre, layers=layers)
    for i, cell in enumerate(net.k):
        cell.d = DropPath(p * i / (layers - 1))
    return net
