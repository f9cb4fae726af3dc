"""Norms read off the operators. Patterns propose, replay decides.

A formula is claimed only where the recorded subgraph, run on probe rows in FP64, is that formula to rounding.

Formulas: LayerNorm, Ba et al. 2016 (biased variance, epsilon inside the root, as torch.nn.LayerNorm); RMSNorm, Zhang
and Sennrich 2019; ScaleNorm, Nguyen and Salazar 2019; Dynamic Tanh, Zhu et al. 2025.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.fx import Node

from blockaudit.graph import flow
from blockaudit.graph.flow import Flow, dtype, op, operand, peel, shape, structure

_REDUCES = {
    "mean", "sum", "var", "std", "var_mean", "linalg_vector_norm", "norm", "native_layer_norm", "_fused_rms_norm",
}  # fmt: skip
_ALLOWED = _REDUCES | {
    "_to_copy", "pow", "mul", "add", "sub", "div", "rsqrt", "sqrt", "reciprocal", "square", "neg", "abs", "tanh",
    "getitem", "view", "_unsafe_view", "reshape", "expand", "expand_as", "unsqueeze", "squeeze", "clone", "alias",
    "detach", "clamp_min", "clamp", "maximum", "mul_", "add_", "div_", "sub_", "rsub", "t", "transpose", "permute",
}  # fmt: skip
_DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_CLOSE = 1e-7


@dataclass(frozen=True)
class Norm:
    """One norm as executed: `source` is the value that it reads, `output` what it gives.

    epsilon is None where the formula has none; `weight` is the parameter's name, a label.
    """

    source: Node
    output: Node
    family: str
    epsilon: float | None
    epsilon_location: str | None
    variance_correction: int | None
    center: bool
    scale: str
    scale_offset: int
    bias: bool
    work_dtype: str
    cast_order: str
    weight: str
    axes: tuple[int, ...] = (-1,)


def find(graph: Flow, names: dict[str, str], constants: dict[str, torch.Tensor], output: Node) -> Norm | None:
    """The norm that ends at `output`, or None where no formula is confirmed."""
    output = peel(output, casts=False)
    # No more than the two nearest are ever looked at.
    sources = list(islice((s for s in _sources(graph, output) if _reduces(graph.between(s, output))), 2))
    if sources:
        found = _confirmed(graph, names, constants, _behind_cast(sources[0]), output)
        if found is None or found.family != "rmsnorm" or len(sources) == 1:
            return found
        # A row that was centred first: both steps together may be a LayerNorm.
        wider = _confirmed(graph, names, constants, _behind_cast(sources[1]), output)
        return wider if wider is not None and wider.family == "layernorm" else found
    return _dyt(graph, names, constants, output)


def affine(graph: Flow, names: dict[str, str], constants: dict[str, torch.Tensor], output: Node) -> Norm | None:
    """Weight * x + bias by channel: what stands in a norm's place where a family is built with `none`."""
    product, weight, bias = operand(output, 0), None, operand(output, 1)
    if op(output) != "add" or product is None or bias is None or op(product) != "mul" or graph.is_data(bias):
        return None
    source = next((a for a in product.all_input_nodes if graph.is_data(a)), None)
    weight = next((a for a in product.all_input_nodes if not graph.is_data(a)), None)
    width = shape(output)[-1:]
    if source is None or weight is None or not shape(weight) == shape(bias) == width or shape(source) != shape(output):
        return None
    probe = _Probe(graph, graph.between(source, output), source, output, constants)
    if {weight, bias} != set(probe.parameters):
        return None
    rows, values = probe.rows(), {p: torch.rand(width, generator=probe.generator).double() for p in (weight, bias)}
    if not _same(rows * values[weight] + values[bias], probe.run(rows, values)):
        return None
    label = names.get(str(weight.target), "")
    return Norm(source, output, "none", None, None, None, False, "per_channel", 0, True, "float32", "none", label)


def _reduces(region: list[Node]) -> bool:
    return any(op(n) in _REDUCES or op(n) == "bmm" for n in region)


def _behind_cast(source: Node) -> Node:
    """The state itself, where the norm begins by widening it."""
    return (operand(source) or source) if op(source) == "_to_copy" else source


def _sources(graph: Flow, output: Node) -> Iterator[Node]:
    """Values of the output's shape through which everything that goes into it goes, the nearest first."""
    if op(output) not in _ALLOWED or not graph.is_data(output):
        return
    # What is read and not yet passed, by place: the latest is passed next, so that each node is met once.
    ahead = {graph.index[a] for a in output.all_input_nodes if graph.is_data(a)}
    while ahead:
        node = graph.nodes[max(ahead)]
        if len(ahead) == 1 and shape(node)[-1:] == shape(output)[-1:] and len(shape(node)) >= 2:
            yield node
        # A product of one row with itself is a sum of squares.
        if op(node) not in _ALLOWED and not (op(node) == "bmm" and shape(node)[-2:] == (1, 1)):
            return
        ahead.remove(graph.index[node])
        ahead |= {graph.index[a] for a in node.all_input_nodes if graph.is_data(a)}


def _confirmed(
    graph: Flow, names: dict[str, str], constants: dict[str, torch.Tensor], source: Node, output: Node
) -> Norm | None:
    region = graph.between(source, output)
    probe = _Probe(graph, region, source, output, constants)
    # Layers that are built alike are probed once.
    key = probe.structure()
    if key not in graph.found:
        graph.found[key] = _verdict(probe)
    verdict = graph.found[key]
    if verdict is None:
        return None
    family, epsilon, location, correction = verdict.fit
    weight, bias = probe.at(verdict.weight), probe.at(verdict.bias)
    return Norm(
        source=source,
        output=output,
        family=family,
        epsilon=epsilon,
        epsilon_location=location,
        variance_correction=correction,
        center=family == "layernorm",
        scale=_granularity(weight),
        scale_offset=verdict.offset,
        bias=bias is not None,
        work_dtype=_work_dtype(region),
        cast_order=_cast_order(graph, region, weight),
        weight=names.get(str(weight.target), "") if weight is not None else "",
    )


@dataclass(frozen=True)
class _Verdict:
    """What a probe confirmed; the parameters by their place among the probe's own."""

    fit: tuple[str, float | None, str | None, int | None]
    weight: int | None
    bias: int | None
    offset: int


def _verdict(probe: _Probe) -> _Verdict | None:
    try:
        fit = probe.read()
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError):
        return None  # a subgraph that cannot be replayed is not claimed
    if fit is None:
        return None
    return _Verdict(fit, probe.place(probe.weight), probe.place(probe.bias), probe.offset)


def _granularity(weight: Node | None) -> str:
    if weight is None:
        return "none"
    dims = [d for d in shape(weight) if d != 1]
    return "scalar" if not dims else "per_channel" if len(dims) == 1 else "per_head"


def _work_dtype(region: list[Node]) -> str:
    """The dtype in which the statistic is taken: of what is done before it too, where that is narrower."""
    narrow: torch.dtype | None = None
    for node in region:
        if op(node) in ("native_layer_norm", "_fused_rms_norm"):
            return "float32"  # the kernel accumulates so, whatever the dtype it is given
        if op(node) in _REDUCES:
            found = narrow or dtype(node) or torch.float32
            return _DTYPES.get(found, str(found))
        if op(node) in ("pow", "mul", "square", "sub") and dtype(node) in (torch.bfloat16, torch.float16):
            narrow = dtype(node)
    return "float32"


def _cast_order(graph: Flow, region: list[Node], weight: Node | None) -> str:
    """Whether the result is cast back to the state's dtype before the multiply by the weight or after it, if at all."""
    if weight is None or any(op(n) == "native_layer_norm" for n in region):
        return "none"
    back = [n for n in region if op(n) == "_to_copy" and dtype(n) in (torch.bfloat16, torch.float16)]
    scaled = [
        n
        for n in region
        if op(n) in ("mul", "mul_") and any(graph.precedes(weight, a) or a is weight for a in n.all_input_nodes)
    ]
    if not back or not scaled:
        return "none"
    return "cast_before_scale" if graph.precedes(back[0], scaled[0]) else "cast_after_scale"


class _Probe:
    """A proposed norm, run on rows and parameters of our choosing."""

    def __init__(self, graph: Flow, region: list[Node], source: Node, output: Node, constants: dict[str, Any]) -> None:
        self.source, self.output = source, output
        outside = {a for n in region for a in n.all_input_nodes} - set(region) - {source}
        self.made = graph.made_of(outside)
        self.region = region
        self.parameters = [n for n in self.made if n.op == "get_attr" and str(n.target) not in constants]
        self.constants = {
            n: constants[str(n.target)].double() for n in self.made if n.op == "get_attr" and str(n.target) in constants
        }
        self.weight: Node | None = None
        self.bias: Node | None = None
        self.offset = 0
        generator = torch.Generator().manual_seed(20)
        self.generator = generator

    def structure(self) -> Hashable:
        """What the proposed norm computes, whatever its nodes are called."""
        return ("norm", structure([self.source, *self.made, *self.region], {self.source}, self.constants))

    def place(self, parameter: Node | None) -> int | None:
        return None if parameter is None else self.parameters.index(parameter)

    def at(self, place: int | None) -> Node | None:
        return None if place is None else self.parameters[place]

    def run(self, rows: torch.Tensor, parameters: dict[Node, torch.Tensor]) -> torch.Tensor:
        known = {self.source: rows, **parameters, **self.constants}
        return flow.replay([*self.made, *self.region], known)[self.output]

    def rows(self) -> torch.Tensor:
        """Probe rows in the source's shape: plain, shifted, tiny, large, mixed over the leading axes."""
        size = shape(self.source)
        rows = torch.randn(size, generator=self.generator, dtype=torch.float64)
        flat = rows.reshape(-1, size[-1])
        for i in range(flat.shape[0]):
            flat[i] = (flat[i] + (0, 1.5, 0, -3)[i % 4]) * (1.0, 0.5, 1e-3, 30.0, 1e-2)[i % 5]
        return flat.reshape(size)

    def read(self) -> tuple[str, float | None, str | None, int | None] | None:
        """(family, epsilon, its location, variance correction) where a formula is confirmed on fresh rows."""
        rows = self.rows()
        zeros = {p: torch.zeros(shape(p), dtype=torch.float64) for p in self.parameters}
        unit = self._roles(rows, zeros)
        if unit is None or not self._row_local(rows, unit):
            return None
        fit = _fit(rows, self.run(rows, unit))
        if fit is None:
            return None
        fresh = self.rows()
        if not _same(_formula(fresh, *fit), self.run(fresh, unit)):
            return None
        return fit if self._affine(fresh, fit) else None

    def _roles(self, rows: torch.Tensor, zeros: dict[Node, torch.Tensor]) -> dict[Node, torch.Tensor] | None:
        """Which parameter scales and which shifts, found by setting each; parameters that leave the bare formula."""
        if not self.parameters:
            return {}
        still = self.run(rows, zeros)
        for p in self.parameters:
            moved = self.run(rows, {**zeros, p: torch.ones(shape(p), dtype=torch.float64)}) - still
            if moved.abs().max() == 0:
                return None if len(self.parameters) == 1 else zeros
            flat = moved.reshape(-1, moved.shape[-1])
            if _same(flat, flat[:1].expand_as(flat)) and _same(moved, torch.ones_like(moved)):
                self.bias = p
            else:
                self.weight = p
        self.offset = int(bool(still.abs().max() > 0))
        if self.weight is None:
            return zeros
        return zeros if self.offset else {**zeros, self.weight: torch.ones(shape(self.weight), dtype=torch.float64)}

    def _row_local(self, rows: torch.Tensor, unit: dict[Node, torch.Tensor]) -> bool:
        """Whether a row's result depends on that row alone."""
        other = rows.clone()
        other.reshape(-1, rows.shape[-1])[1:] *= 3.7
        a, b = self.run(rows, unit), self.run(other, unit)
        return _same(a.reshape(-1, a.shape[-1])[:1], b.reshape(-1, b.shape[-1])[:1])

    def _affine(self, rows: torch.Tensor, fit: Any) -> bool:
        """The whole norm with random weight and bias against gain * formula + bias."""
        values = {p: torch.randn(shape(p), generator=self.generator, dtype=torch.float64) for p in self.parameters}
        expected = _formula(rows, *fit)
        if self.weight is not None:
            expected = expected * (values[self.weight] + self.offset)
        if self.bias is not None:
            expected = expected + values[self.bias]
        return _same(expected, self.run(rows, values))


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= _CLOSE * (1 + b.abs().max()))


def _fit(rows: torch.Tensor, result: torch.Tensor) -> tuple[str, float | None, str | None, int | None] | None:
    """The formula and the epsilon that rows and results agree on."""
    if rows.shape != result.shape:
        return None
    width = rows.shape[-1]
    centred = rows - rows.mean(-1, keepdim=True)
    for family, z, correction in (("rmsnorm", rows, 0), ("layernorm", centred, 0), ("layernorm", centred, 1)):
        inner = (z * result).sum(-1)
        square = z.square().sum(-1)
        # result = z / denominator: the denominator by least squares, and the results must lie on it.
        denominator = square / inner
        if not torch.isfinite(denominator).all() or not _same(z / denominator.unsqueeze(-1), result):
            continue
        moment = square / (width - correction)
        inside, outside = denominator.square() - moment, denominator - moment.sqrt()
        for location, epsilon in (("inside", inside), ("outside", outside)):
            value = _constant(epsilon, moment if location == "inside" else moment.sqrt())
            if value is not None:
                return family, value, location, correction if family == "layernorm" else None
        if family == "rmsnorm":
            value = _constant(denominator.square() - square, square)
            if value is not None:
                return "scalenorm", value, "inside" if value else None, None
    return None


def _constant(epsilon: torch.Tensor, beside: torch.Tensor) -> float | None:
    """One epsilon for all rows, to the precision that the subtraction leaves: the smallest moment knows it best."""
    best = int(beside.reshape(-1).argmin())
    value = float(epsilon.reshape(-1)[best])
    if abs(value) <= 1e-13 * float(beside.reshape(-1)[best]):
        value = 0.0  # what is left of the subtraction is rounding
    error = (epsilon - value).abs()
    if value < -1e-15 or not bool((error <= 1e-10 * beside + 1e-6 * abs(value) + 1e-18).all()):
        return None
    return float(f"{max(value, 0.0):.6g}")


def _formula(
    rows: torch.Tensor, family: str, epsilon: float | None, location: str | None, correction: int | None
) -> Any:
    z = rows - rows.mean(-1, keepdim=True) if family == "layernorm" else rows
    if family == "scalenorm":
        return z / (z.square().sum(-1, keepdim=True) + (epsilon or 0.0)).sqrt()
    moment = z.square().sum(-1, keepdim=True) / (rows.shape[-1] - (correction or 0))
    eps = epsilon or 0.0
    return z / ((moment + eps).sqrt() if location == "inside" else moment.sqrt() + eps)


def _dyt(graph: Flow, names: dict[str, str], constants: dict[str, torch.Tensor], output: Node) -> Norm | None:
    """Gamma * tanh(alpha * x) + beta, elementwise."""
    for source in _sources(graph, output):
        region = graph.between(source, output)
        if [op(n) for n in region].count("tanh") != 1:
            continue
        probe = _Probe(graph, region, source, output, constants)
        scalars = [p for p in probe.parameters if not [d for d in shape(p) if d != 1]]
        vectors = [p for p in probe.parameters if p not in scalars]
        if len(scalars) != 1 or not vectors:
            continue
        values = {
            p: torch.rand(shape(p), generator=probe.generator, dtype=torch.float64) + 0.5 for p in probe.parameters
        }
        rows = probe.rows()
        result = probe.run(rows, values)
        for gamma in vectors:
            others = [v for v in vectors if v is not gamma]
            expected = values[gamma] * torch.tanh(values[scalars[0]] * rows) + sum(values[v] for v in others)
            if _same(expected, result):
                return Norm(
                    source, output, "dyt", None, None, None, False, "per_channel", 0, bool(others),
                    _work_dtype(region), "none", names.get(str(gamma.target), ""),
                )  # fmt: skip
    return None
