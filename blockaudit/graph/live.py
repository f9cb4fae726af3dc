"""Record a model that holds real weights, and run its recorded operators again on fresh tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_aggregate  # pyright: ignore[reportUnknownVariableType] - untyped upstream

from blockaudit.graph.pure import without_writes, writes
from blockaudit.graph.record import Recording, inner_models
from blockaudit.graph.weightless import mode_of

_VIEW: Any = torch.ops.aten.view.default
_RESHAPE: Any = torch.ops.aten.reshape.default
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def randomise(model: torch.nn.Module, seed: int = 11) -> None:
    """Weights with nothing to hide behind: no norm weight is one and no bias zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point():
                continue
            spread = 0.3 if parameter.ndim < 2 else 0.05
            parameter.add_(spread * torch.randn(parameter.shape, generator=generator))


def forward(model: Any, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One forward pass: the logits, and the value that leaves each stack, by the name that it has."""
    seen: dict[str, torch.Tensor] = {}

    def keep(_module: Any, _args: Any, output: Any) -> None:
        for name, field in (("decoder", "last_hidden_state"), ("encoder", "encoder_last_hidden_state")):
            value = getattr(output, field, None)
            if isinstance(value, torch.Tensor):
                seen[name] = value

    handles = [module.register_forward_hook(keep) for module in inner_models(model)]
    try:
        with torch.no_grad():
            try:
                output = model(**inputs, use_cache=False)
            except TypeError:
                output = model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    keep(None, None, output)
    logits = getattr(output, "logits", None)
    return {**seen, "logits": logits} if isinstance(logits, torch.Tensor) else seen


def record_model(model: Any, inputs: Mapping[str, torch.Tensor], version: str = "") -> Recording:
    """The operators of one forward pass. Buffers that no checkpoint holds are constants; parameters are not."""
    names: list[str] = []

    def run(*values: torch.Tensor) -> list[torch.Tensor]:
        found = forward(model, dict(zip(inputs, values, strict=True)))
        names[:] = found
        return list(found.values())

    traced, looked = _traced(run, list(inputs.values()), mode_of(model))
    tensors: dict[int, str] = {id(p): n for n, p in (*model.named_parameters(), *model.named_buffers())}
    stored = set(model.state_dict())
    labels: dict[str, str] = {}
    constants: dict[str, torch.Tensor] = {}
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            value: torch.Tensor = getattr(traced, node.target)
            labels[node.target] = tensors.get(id(value), "")
            if labels[node.target] not in stored and not value.requires_grad:
                constants[node.target] = value
    last: Any = next(n for n in reversed(list(traced.graph.nodes)) if n.op == "output")
    ends: dict[str, Node] = dict(zip(names, last.args[0], strict=True))
    hidden = {k: ends[k] for k in ("decoder", "encoder") if k in ends}
    return Recording(
        traced, labels, constants, hidden, ends.get("logits"), type(model).__name__, version, looked=looked
    )


def _traced(run: Any, given: list[torch.Tensor], fake: FakeTensorMode | None = None) -> tuple[Any, bool]:
    """Operators under fake inputs, as the audit records them; with the tokens themselves where the code reads data.

    And whether it does.

    fake: the mode of weights that are fake already.
    """
    fake = fake or FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        faked = [fake.from_tensor(v) for v in given]
    try:
        with fake:
            return without_writes(make_fx(run, _allow_non_fake_inputs=True)(*faked), faked), False
    except Exception:  # model code may raise anything
        # What the code looked at is a constant in such a graph: whoever replays it must see that it still holds.
        return without_writes(make_fx(run, _error_on_data_dependent_ops=False)(*given), given), True


def values(
    recording: Recording, inputs: Iterable[torch.Tensor], weights: Mapping[str, torch.Tensor]
) -> dict[Node, Any]:
    """What every recorded operator gives on fresh inputs, in the widest float; weights by get_attr target."""
    known: dict[Node, Any] = {}
    given = iter(inputs)
    nodes = [n for n in recording.nodes if n.op != "output"]
    for node in nodes:
        if node.op == "placeholder":
            known[node] = widened(next(given))
        elif node.op == "get_attr":
            known[node] = widened(weights[str(node.target)])
    return replay(nodes, known)


def weights(recording: Recording) -> dict[str, torch.Tensor]:
    """The weights that a recording of a live model holds."""
    module: Any = recording.module
    return {str(n.target): getattr(module, str(n.target)) for n in recording.nodes if n.op == "get_attr"}


def widened(value: torch.Tensor) -> torch.Tensor:
    """A float tensor in FP64, any other as it is."""
    return value.detach().double() if value.dtype in _FLOATS else value.detach()


def replay(region: Iterable[Node], known: Mapping[Node, Any]) -> dict[Node, Any]:
    """Run a subgraph in FP64. Every value is kept as it was when it was made, whatever is written into it later."""
    nodes = list(region)
    mutable = any(writes(n) for n in nodes)
    current: dict[Node, Any] = {n: _copy(v) if mutable else v for n, v in known.items()}
    kept: dict[Node, Any] = dict(known)

    def fetch(argument: Any) -> Any:
        return current[argument] if isinstance(argument, Node) else argument

    for node in nodes:
        if node in kept:
            continue
        args = cast("tuple[Any, ...]", map_aggregate(node.args, fetch))
        kwargs = {k: _wide(k, fetch(v)) for k, v in node.kwargs.items() if k != "pin_memory"}
        # A value of ours may lie in memory in another order than the recorded one: a view of it may be none.
        call: Any = _RESHAPE if node.target is _VIEW and not mutable else node.target
        current[node] = call(*args, **kwargs)
        kept[node] = _copy(current[node]) if mutable else current[node]
    return kept


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _wide(key: str, value: Any) -> Any:
    return torch.float64 if key == "dtype" and value in _FLOATS else value
