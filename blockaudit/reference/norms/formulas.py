"""The norm of every family, written from its paper: x -> normalised row -> times (offset + weight) plus bias.

Exact in the dtype of x (float32 or float64) and differentiable by autograd. Whether the mean is subtracted is the
family's: `NormSpec.center` only matters to `qknorm`, whose method does not say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from blockaudit.records.norm_spec import NormSpec
from blockaudit.reference.norms.spelling import Axes, Spelling

State = Mapping[str, Tensor]
Formula = Callable[[NormSpec, Tensor, State, Spelling], Tensor]
EXACT = Spelling()


class NormError(ValueError):
    """A norm that cannot be computed as declared; one line that names the field."""


def apply(
    spec: NormSpec, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, state: State | None = None
) -> Tensor:
    """The norm `spec` of x, in x's dtype and shape.

    x: [..., D], its units arbitrary; the result has none but the weight's. weight and bias: [D] for `per_channel`, one
    number for `scalar`, [H, D] for `per_head` (x: [..., H, D]); where the spec says `scale: none` or `bias: false` they
    are not looked at, so that an edited spec can be run on the same tensors. state: what a family keeps, see the
    formulas. NormError where the declaration lacks something.
    """
    y = normalised(spec, x, state)
    if weight is not None and spec.scale != "none":
        y = y * (weight.to(y.dtype) + spec.scale_offset)
    return y + bias.to(y.dtype) if bias is not None and spec.bias else y


def normalised(spec: NormSpec, x: Tensor, state: State | None = None, how: Spelling = EXACT) -> Tensor:
    """The row before weight and bias, in x's dtype and shape."""
    formula = FORMULAS.get(spec.family)
    if formula is None:
        raise NormError(f"family: expected one of {', '.join(FORMULAS)}, found {spec.family}")
    kept = {k: v if v.dtype == torch.bool else v.to(x.dtype) for k, v in (state or {}).items()}
    return formula(spec, x, kept, how)


def _divided(spec: NormSpec, z: Tensor, square: Tensor, how: Spelling) -> Tensor:
    return how.over(z, square, spec.epsilon or 0.0, spec.epsilon_location == "outside")


def _layernorm(spec: NormSpec, x: Tensor, state: State, how: Spelling) -> Tensor:
    """(x - mean) / sqrt(var + epsilon) over `axes` of one row. Ba, Kiros and Hinton 2016.

    `variance_correction` 0 is torch.nn.LayerNorm; `epsilon_location` outside adds epsilon to the deviation.
    """
    del state
    return _divided(spec, *how.variance(x, spec.axes, spec.variance_correction), how)


def _layernorm_std_eps(spec: NormSpec, x: Tensor, state: State, how: Spelling) -> Tensor:
    """(x - mean) / (std + epsilon): the LayerNorm of The Annotated Transformer (Rush 2018), where std divides by n - 1.

    The epsilon stands outside the root whatever `epsilon_location` says; `variance_correction` is the spec's.
    """
    del state
    z, square = how.variance(x, spec.axes, spec.variance_correction)
    return how.over(z, square, spec.epsilon or 0.0, True)


def _rmsnorm(spec: NormSpec, x: Tensor, state: State, how: Spelling) -> Tensor:
    """Zhang and Sennrich 2019: x / sqrt(mean(x^2) + epsilon) over `axes` of one row."""
    del state
    return _divided(spec, x, how.mean(x.pow(2), spec.axes), how)


def _prmsnorm(spec: NormSpec, x: Tensor, state: State, how: Spelling) -> Tensor:
    """Zhang and Sennrich 2019 (pRMSNorm): x / sqrt(mean of the squares of m coordinates + epsilon).

    `subset`: the number m of leading coordinates of the last axis, or their indices. The whole row is divided.
    """
    del state
    if spec.subset is None:
        raise NormError("subset: prmsnorm needs the coordinates that it reads")
    size = x.shape[-1]
    read = range(spec.subset) if isinstance(spec.subset, int) else spec.subset
    if not read or not all(-size <= i < size for i in read):
        raise NormError(f"subset: expected coordinates of a row of {size}, found {spec.subset}")
    part = x.index_select(-1, torch.tensor([i % size for i in read], device=x.device))
    return _divided(spec, x, how.mean(part.pow(2), spec.axes), how)


def _scalenorm(spec: NormSpec, x: Tensor, state: State, how: Spelling) -> Tensor:
    """Nguyen and Salazar 2019: x / sqrt(sum(x^2) + epsilon), the row at unit L2 norm, then one learned number."""
    del state
    return _divided(spec, x, how.total(x.pow(2), spec.axes), how)


def _qknorm(spec: NormSpec, x: Tensor, state: State, how: Spelling) -> Tensor:
    """Henry et al. 2020: the L2 norm of each head's query or key made one, x / sqrt(sum(x^2) + epsilon).

    x: [..., H, D], reduced over D; the mean is taken off first where `center` says so. A model whose q/k norms are
    RMSNorms or LayerNorms declares those families instead.
    """
    del state
    z = x - how.mean(x, spec.axes) if spec.center else x
    return _divided(spec, z, how.total(z.pow(2), spec.axes), how)


def _groupnorm(spec: NormSpec, x: Tensor, state: State, how: Spelling) -> Tensor:
    """LayerNorm inside each of `groups` equal groups of channels. Wu and He 2018.

    x: [..., D], channels last. axes (-1,): each row by itself; (-2, -1): the positions of an example together, which is
    torch.nn.GroupNorm on [N, C, L] with the axes swapped.
    """
    if not spec.groups or x.shape[-1] % spec.groups:
        raise NormError(f"groups: expected a divisor of {x.shape[-1]} channels, found {spec.groups}")
    axes = _from_end(spec.axes, x.dim())
    if -1 not in axes:
        raise NormError(f"reduction_axes: groupnorm reduces over the channels (-1), found {list(spec.axes)}")
    split = x.reshape(*x.shape[:-1], spec.groups, x.shape[-1] // spec.groups)
    wider = tuple(axis if axis == -1 else axis - 1 for axis in axes)
    valid = _valid(state, split) if len(axes) > 1 else None
    return _divided(spec, *how.variance(split, wider, spec.variance_correction, valid), how).flatten(-2)


def _instancenorm(spec: NormSpec, x: Tensor, state: State, how: Spelling) -> Tensor:
    """Each channel of each example over its positions. Ulyanov, Vedaldi and Lempitsky 2016.

    x: [B, S, D], axes (-2,). `running_mean` and `running_var` [D] in state are used where they are given; `valid`
    ([B, S], true or false) leaves padded positions out of the statistics.
    """
    return _population(spec, x, state, how)


def _batchnorm(spec: NormSpec, x: Tensor, state: State, how: Spelling) -> Tensor:
    """Each channel over examples and positions. Ioffe and Szegedy 2015.

    x: [B, S, D], axes (0, 1). Evaluation: `running_mean` and `running_var` [D] are in state. Training: they are not,
    and the statistics are the batch's (of the `valid` rows, [B, S], where that is given).
    """
    return _population(spec, x, state, how)


def _powernorm(spec: NormSpec, x: Tensor, state: State, how: Spelling) -> Tensor:
    """Shen et al. 2020 (PN-V, PN): x / sqrt(quadratic mean of the channel + epsilon), no centring.

    Evaluation, and PN's training forward: `running_phi` [D] in state, the running quadratic mean. Without it the
    batch's (PN-V, and PN while it warms up). The gradient here is autograd's, not the paper's approximate backward.
    """
    if "running_phi" in state:
        return _divided(spec, x, state["running_phi"], how)
    _channels_stay(spec, x)
    return _divided(spec, x, how.mean(x.pow(2), spec.axes, _valid(state, x)), how)


def _dyt(spec: NormSpec, x: Tensor, state: State, how: Spelling) -> Tensor:
    """Zhu et al. 2025 (Dynamic Tanh): tanh(alpha x), alpha one learned number in state. Nothing is reduced."""
    del spec, how
    if "alpha" not in state:
        raise NormError("family: dyt needs its scalar alpha")
    return torch.tanh(state["alpha"] * x)


def _none(spec: NormSpec, x: Tensor, state: State, how: Spelling) -> Tensor:
    """No norm: only weight and bias are left."""
    del spec, state, how
    return x


def _population(spec: NormSpec, x: Tensor, state: State, how: Spelling) -> Tensor:
    if "running_mean" in state and "running_var" in state:
        return _divided(spec, x - state["running_mean"], state["running_var"], how)
    _channels_stay(spec, x)
    return _divided(spec, *how.variance(x, spec.axes, spec.variance_correction, _valid(state, x)), how)


def _channels_stay(spec: NormSpec, x: Tensor) -> None:
    if -1 in _from_end(spec.axes, x.dim()):
        raise NormError(f"reduction_axes: {spec.family} has one statistic per channel (-1), found {list(spec.axes)}")


def _valid(state: State, x: Tensor) -> Tensor | None:
    """`valid` of the state with as many axes as x, the new ones at the end and of length 1."""
    valid = state.get("valid")
    return None if valid is None else valid.reshape(*valid.shape, *(1 for _ in range(x.dim() - valid.dim())))


def _from_end(axes: Axes, rank: int) -> Axes:
    return tuple(axis - rank if axis >= 0 else axis for axis in axes)


FORMULAS: dict[str, Formula] = {
    "layernorm": _layernorm,
    "layernorm_std_eps": _layernorm_std_eps,
    "rmsnorm": _rmsnorm,
    "prmsnorm": _prmsnorm,
    "scalenorm": _scalenorm,
    "groupnorm": _groupnorm,
    "instancenorm": _instancenorm,
    "batchnorm": _batchnorm,
    "powernorm": _powernorm,
    "qknorm": _qknorm,
    "dyt": _dyt,
    "none": _none,
}
