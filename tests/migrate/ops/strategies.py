"""Hypothesis strategies: an operation, and a state that it can act on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import strategies as st

from blockaudit.records import operations as o
from blockaudit.records.migration import Row, State
from blockaudit.records.operations import HeadLayout, Operation
from tests.migrate.ops.states import numbered, over, row

Case = tuple[Operation, State[torch.Tensor]]
sizes = st.integers(1, 5)
shapes = st.lists(sizes, min_size=1, max_size=3).map(tuple)
LAYOUTS: tuple[HeadLayout, ...] = ("qkv", "per_head", "per_group")


def _several(draw: st.DrawFn, shape: tuple[int, ...], count: int) -> tuple[torch.Tensor, ...]:
    dtype = draw(st.sampled_from([torch.float32, torch.int64, torch.bfloat16]))
    size = int(torch.Size(shape).numel())
    return tuple(numbered(*shape, start=n * size, dtype=dtype) for n in range(count))


def _dim(draw: st.DrawFn, rank: int) -> int:
    """An axis, from the front or from the back."""
    return draw(st.integers(-rank, rank - 1))


@st.composite
def transposes(draw: st.DrawFn) -> Case:
    shape = draw(st.lists(sizes, min_size=2, max_size=3).map(tuple))
    a, b = draw(st.permutations(range(len(shape))))[:2]
    below = draw(st.sampled_from([0, len(shape)]))  # an axis counted from the end
    op = o.Transpose(dims=(a, b - below), at=draw(st.sampled_from([None, 0, [1]])))
    return op, row(*_several(draw, shape, 2))


@st.composite
def slices(draw: st.DrawFn) -> Case:
    shape = draw(shapes)
    dim = _dim(draw, len(shape))
    stop = draw(st.integers(1, shape[dim]))
    return o.Slice(dim=dim, start=draw(st.integers(0, stop - 1)), stop=stop), row(*_several(draw, shape, 2))


@st.composite
def pads(draw: st.DrawFn) -> Case:
    shape = draw(shapes)
    dim = _dim(draw, len(shape))
    size = draw(st.integers(shape[dim], shape[dim] + 3))
    return o.Pad(dim=dim, size=size, value=7.0), row(*_several(draw, shape, 2))


@st.composite
def splits(draw: st.DrawFn) -> Case:
    shape, parts = list(draw(shapes)), draw(st.lists(sizes, min_size=1, max_size=4))
    dim = _dim(draw, len(shape))
    shape[dim] = sum(parts)
    return o.Split(dim=dim, sizes=[*parts]), row(*_several(draw, tuple(shape), 1))


@st.composite
def equal_splits(draw: st.DrawFn) -> Case:
    shape, count = list(draw(shapes)), draw(st.integers(1, 4))
    dim = _dim(draw, len(shape))
    shape[dim] *= count
    axis = draw(st.sampled_from([None, "r"]))
    return o.Split(dim=dim, axis=axis, count=count), row(*_several(draw, tuple(shape), 1 if axis is None else 2))


def _fused(draw: st.DrawFn) -> tuple[HeadLayout, int, int, int, list[int], int]:
    """Layout, heads, kv heads, rows of a head, the other sizes, and the axis that the rows lie along."""
    layout, kv, rows = draw(st.sampled_from(LAYOUTS)), draw(st.integers(1, 3)), draw(sizes)
    heads = kv * (1 if layout == "per_head" else draw(st.integers(1, 3)))
    other = draw(st.lists(sizes, max_size=2))
    return layout, heads, kv, rows, other, draw(st.integers(0, len(other)))


@st.composite
def head_splits(draw: st.DrawFn) -> Case:
    layout, heads, kv, rows, other, dim = _fused(draw)
    shape = (*other[:dim], (heads + 2 * kv) * rows, *other[dim:])
    return o.Split(dim=dim, layout=layout, heads=heads, kv_heads=kv), row(*_several(draw, shape, 1))


@st.composite
def head_concats(draw: st.DrawFn) -> Case:
    layout, heads, kv, rows, other, dim = _fused(draw)
    shapes_ = [(*other[:dim], n * rows, *other[dim:]) for n in (heads, kv, kv)]
    return o.Concat(dim=dim, layout=layout, heads=heads, kv_heads=kv), row(*(numbered(*shape) for shape in shapes_))


@st.composite
def concats(draw: st.DrawFn) -> Case:
    shape, parts = list(draw(shapes)), draw(st.lists(sizes, min_size=1, max_size=4))
    dim = _dim(draw, len(shape))
    given = [numbered(*shape[: dim % len(shape)], n, *shape[dim % len(shape) + 1 :]) for n in parts]
    return o.Concat(dim=dim), row(*given)


@st.composite
def rank_concats(draw: st.DrawFn) -> Case:
    shape, count = draw(shapes), draw(st.integers(1, 4))
    given = _several(draw, shape, 2 * count)
    return o.Concat(dim=_dim(draw, len(shape)), axis="r"), over("r", *zip(given[::2], given[1::2], strict=True))


@st.composite
def stacks(draw: st.DrawFn) -> Case:
    shape, count, axis = draw(shapes), draw(st.integers(1, 4)), draw(st.sampled_from([None, "e"]))
    dim = draw(st.integers(-len(shape) - 1, len(shape)))
    given = _several(draw, shape, count)
    return o.Stack(dim=dim, axis=axis), row(*given) if axis is None else over("e", *((t,) for t in given))


@st.composite
def unstacks(draw: st.DrawFn) -> Case:
    shape, axis = draw(shapes), draw(st.sampled_from([None, "e"]))
    return o.Unstack(dim=_dim(draw, len(shape)), axis=axis), row(*_several(draw, shape, 1))


@st.composite
def copies(draw: st.DrawFn) -> Case:
    shape, count = draw(shapes), draw(st.integers(1, 4))
    (tensor,) = _several(draw, shape, 1)
    if draw(st.booleans()):
        return o.Replicated(axis="r", count=count), row(tensor)
    return o.Replicated(axis="r"), tuple(Row((("r", n),), (tensor.clone(),)) for n in range(count))


@st.composite
def permutations(draw: st.DrawFn) -> Case:
    heads, pairs, still, other = draw(sizes), draw(sizes), draw(st.integers(0, 2)), draw(st.lists(sizes, max_size=2))
    dim = draw(st.integers(0, len(other)))
    shape = (*other[:dim], heads * (2 * pairs + still), *other[dim:])
    from_, to = draw(st.permutations(["half", "interleaved"]))
    op = o.PermuteRope(heads=heads, from_=from_, to=to, rotary_dim=2 * pairs, dim=dim)  # pyright: ignore[reportArgumentType]
    return op, row(*_several(draw, shape, 2))


@st.composite
def sums(draw: st.DrawFn) -> Case:
    return o.Add(value=float(draw(st.integers(-3, 3)))), row(numbered(*draw(shapes)))


@st.composite
def products(draw: st.DrawFn) -> Case:
    return o.Scale(value=2.0 ** draw(st.integers(-4, 4))), row(numbered(*draw(shapes)))


@st.composite
def casts(draw: st.DrawFn) -> Case:
    dtype = draw(st.sampled_from([torch.bfloat16, torch.float16, torch.float32]))
    return o.Cast(dtype=draw(st.sampled_from(["F32", "F64", "float32"]))), row(numbered(*draw(shapes), dtype=dtype))


@st.composite
def folds(draw: st.DrawFn) -> Case:
    shape = draw(shapes)
    dim = _dim(draw, len(shape))
    tensors = [numbered(*shape, start=n) for n in range(draw(st.integers(1, 3)))]
    return o.Fold(dim=dim, offset=float(draw(st.integers(0, 1)))), row(*tensors, numbered(shape[dim], start=2))


# Every operation that has an inverse for what the strategy draws, with that strategy.
INVERTIBLE: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    "transpose": transposes, "pad": pads, "split": splits, "split equally": equal_splits, "split heads": head_splits,
    "concat heads": head_concats, "concat": concats, "concat ranks": rank_concats, "stack": stacks, "unstack": unstacks,
    "replicated": copies, "permute_rope": permutations, "add": sums, "scale": products, "cast": casts,
}  # fmt: skip
LOSSY: dict[str, Callable[[], st.SearchStrategy[Case]]] = {"slice": slices, "fold": folds}
