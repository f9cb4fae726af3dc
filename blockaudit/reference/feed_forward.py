"""Feed-forward branches: dense, gated, and mixtures of experts. Shapes: N rows of d_model, E experts."""

from __future__ import annotations

import torch
from torch import Tensor

from blockaudit.reference.activations import ACTIVATIONS
from blockaudit.reference.positions import working
from blockaudit.reference.spec import FeedForwardSpec, RoutingSpec
from blockaudit.reference.tensors import Tensors


def feed_forward(spec: FeedForwardSpec, tensors: Tensors, x: Tensor) -> Tensor:
    """The branch on x [B, S, d_model]: [B, S, d_model]."""
    if spec.routing is None:
        return perceptron(spec, tensors, x)
    y = mixture(spec, spec.routing, tensors, x.flatten(0, -2)).view(x.shape)
    return y + perceptron(spec, tensors, x, "shared.") if tensors.has("shared.down") else y


def perceptron(spec: FeedForwardSpec, tensors: Tensors, x: Tensor, of: str = "", **axes: int) -> Tensor:
    """down(act(up x)), or gated down(act(gate x) * up x) (Shazeer 2020). `of` begins the roles (`expert.`)."""
    act = ACTIVATIONS[spec.activation]
    if tensors.has(f"{of}gate_up"):
        gate, up = unfused(spec.fused, tensors.linear(f"{of}gate_up", x, **axes))
        inner = act(gate) * up
    elif tensors.has(f"{of}gate"):
        inner = act(tensors.linear(f"{of}gate", x, **axes)) * tensors.linear(f"{of}up", x, **axes)
    else:
        inner = act(tensors.linear(f"{of}up", x, **axes))
    return tensors.linear(f"{of}down", inner, **axes)


def unfused(layout: str | None, y: Tensor) -> tuple[Tensor, Tensor]:
    """The gate and the up part, [..., d_ff] each, out of one projection [..., 2 * d_ff]."""
    if layout == "interleaved":
        return y[..., 0::2], y[..., 1::2]
    first, second = y.chunk(2, -1)
    return (second, first) if layout == "up_gate" else (first, second)


def mixture(spec: FeedForwardSpec, routing: RoutingSpec, tensors: Tensors, x: Tensor) -> Tensor:
    """The weighted sum of each row's experts, [N, d_model]. Only experts that a row goes to are read."""
    weights, chosen = routed(routing, tensors, x)
    y = torch.zeros_like(x)
    for expert in range(int(chosen.max()) + 1):
        row, place = torch.where(chosen == expert)
        if not len(row):
            continue
        out = perceptron(spec, tensors, x[row], "expert.", e=expert)
        y = y.index_add(0, row, out * weights[row, place, None].to(out.dtype))
    return y


def routed(routing: RoutingSpec, tensors: Tensors, x: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and numbers of the experts of each row of x [N, d_model]: [N, top_k] each."""
    logits = tensors.linear("router", x.to(working(x.dtype)) if routing.wide else x).to(working(x.dtype))
    correction = tensors.get("router.correction") if tensors.has("router.correction") else None
    return route(routing, logits, correction)


def route(spec: RoutingSpec, logits: Tensor, correction: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weights and numbers of each row's experts, [N, top_k] each, from the router's logits [N, E].

    Softmax over all experts, the best kept (Mixtral 2024); or sigmoids, where a learned correction helps to choose and
    does not weigh, and the groups whose two best sum highest are chosen first (DeepSeek-V3 2024, section 2.1.2).
    """
    scores = logits.softmax(-1) if spec.score == "softmax" else torch.sigmoid(logits)
    ranked = scores if correction is None else scores + correction.to(scores.dtype)
    if spec.groups is not None and spec.top_groups is not None:
        by_group = ranked.reshape(*ranked.shape[:-1], spec.groups, -1)
        best = by_group.topk(2, -1).values.sum(-1).topk(spec.top_groups, -1).indices
        kept = torch.zeros(by_group.shape[:-1], dtype=torch.bool, device=ranked.device).scatter(-1, best, True)
        ranked = torch.where(kept[..., None], by_group, -torch.inf).flatten(-2)
    chosen = ranked.topk(spec.top_k, -1).indices
    weights = scores.gather(-1, chosen)
    if spec.normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * spec.scale, chosen
