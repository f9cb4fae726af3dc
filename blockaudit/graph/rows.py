"""Whether a branch computes a row of its update from that row alone, or from rows of other positions too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch.fx import Node

from blockaudit.graph.flow import Flow, one_thread, op, operand, replay, shape, structure
from blockaudit.graph.record import BATCH, LENGTH

_ALONG = {"cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "roll", "flip", "sort", "_softmax", "_safe_softmax"}
_REDUCES = {"sum", "mean", "amax", "amin", "max", "min", "prod", "logsumexp", "var", "std", "var_mean"}
_FOURIER = {"_fft_r2c", "_fft_c2r", "_fft_c2c"}
# Axes over which rows lie: positions, or examples and positions in one.
_ROWS = (LENGTH, BATCH * LENGTH)
# A branch with more parameters than this is judged by its operators alone: at real widths a replay costs gigabytes.
_MOST = 2_000_000
_CLOSE = 1e-9


def mixes(graph: Flow, constants: Mapping[str, torch.Tensor], start: Node, region: Sequence[Node]) -> bool:
    """Whether rows of other positions reach a row between `start` and the end of `region`."""
    if any(_mixing(n) for n in region):
        return True
    return _reaches(graph, constants, start, region) is True


def _mixing(node: Node) -> bool:
    """Whether an operator works along an axis of rows, or chooses by a softmax over no axis of experts."""
    name = op(node)
    value = operand(node)
    if value is None:
        return False
    size = shape(value)
    if name in _FOURIER:
        return True
    if name == "convolution":
        kernel = operand(node, 1)
        return kernel is None or any(n != 1 for n in shape(kernel)[2:])
    if name in _ALONG or name in _REDUCES:
        return any(size[d] in _ROWS for d in _axes(node, len(size)))
    if name in ("slice", "constant_pad_nd", "cat"):
        return _cut(name, size, shape(node))
    if name in ("bmm", "mm") and len(size) >= 2:
        return size[-1] in _ROWS
    return False


def _axes(node: Node, rank: int) -> list[int]:
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    every = list(given) if isinstance(given, list | tuple) else [given]
    axes = [int(d) % rank for d in every if isinstance(d, int) and rank]
    return axes if axes else list(range(rank))


def _cut(name: str, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Whether rows are cut off or put before: that is how a row is moved to another place."""
    if name == "cat" or len(before) != len(after):
        return False
    return any(b in _ROWS and a != b for b, a in zip(before, after, strict=True))


def _reaches(graph: Flow, constants: Mapping[str, torch.Tensor], start: Node, region: Sequence[Node]) -> bool | None:
    """Whether rows of the update change with other rows of the input; None where it cannot be tried."""
    inside = set(region)
    outside = dict.fromkeys(a for n in region for a in n.all_input_nodes if a not in inside and a is not start)
    made = graph.made_of(a for a in outside if not graph.is_data(a))
    sides = [n for n in made if n.op == "get_attr"] + [n for n in outside if graph.is_data(n)]
    if not region or shape(start)[-1:] == (LENGTH,) or sum(prod(shape(n)) for n in sides) > _MOST:
        return None
    fixed = {n: constants[str(n.target)] for n in sides if str(n.target) in constants}
    key = ("rows", structure([start, *made, *outside, *region], {start, *outside}, fixed))
    if key not in graph.found:
        graph.found[key] = _tried(start, [*made, *region], sides, fixed)
    return graph.found[key]


def _tried(
    start: Node, region: Sequence[Node], sides: Sequence[Node], fixed: Mapping[Node, torch.Tensor]
) -> bool | None:
    generator = torch.Generator().manual_seed(23)
    known = {n: fixed[n] if n in fixed else _made_up(n, generator) for n in sides}
    first, other = (torch.randn(shape(start), generator=generator, dtype=torch.float64) for _ in range(2))
    width = first.shape[-1]
    number = torch.arange(first.numel() // width)
    try:
        with one_thread():
            still = replay(region, {**known, start: first})[region[-1]].reshape(-1, width)
            # Two rows differ in a bit of their numbers: each is once among those that move while the other stays.
            for bit in range(len(number).bit_length()):
                for moves in (number >> bit & 1 == 0, number >> bit & 1 == 1):
                    rows = torch.where(moves[:, None], other.reshape(-1, width), first.reshape(-1, width))
                    after = replay(region, {**known, start: rows.reshape(first.shape)})[region[-1]].reshape(-1, width)
                    if bool((after - still)[~moves].abs().gt(_CLOSE * (1 + still.abs().max())).any()):
                        return True
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError, NotImplementedError):
        return None  # what cannot be replayed is judged by its operators alone
    return False


def _made_up(node: Node, generator: torch.Generator) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    if value.dtype.is_floating_point:
        return torch.randn(shape(node), generator=generator, dtype=torch.float64)
    return torch.full(shape(node), value.dtype == torch.bool, dtype=value.dtype)
