"""The reference beside one run: our own decoder, or a wrapper whose branch functions are the candidate's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from blockaudit.records.bound import BoundManifest
from blockaudit.reference.assembly import BranchFunction, Weight
from blockaudit.trace.models import Inputs
from blockaudit.trace.program import Layer
from blockaudit.trace.running import Running

States = Mapping[str, Tensor]


class Reference(Protocol):
    """What a pass asks of a reference. `full`: the branch functions are ours."""

    full: bool
    dtype: torch.dtype

    def begin(self, inputs: Inputs) -> None: ...

    def embed(self, stack: str) -> Tensor | None: ...

    def enter(self, stack: str, state: Tensor) -> Tensor: ...

    def branch(self, layer: Layer, ends: States | None = None) -> BranchFunction: ...

    def routes(self, layer: Layer, name: str, x: Tensor) -> Tensor | None: ...

    def head(self, state: Tensor) -> Tensor | None: ...


class Wrapper:
    """Norms, sums and factors are ours; embedding, branch functions and head are the candidate's own."""

    full = False

    def __init__(self, run: Running) -> None:
        self.run, self.dtype = run, torch.float32

    def begin(self, inputs: Inputs) -> None:
        del inputs

    def embed(self, stack: str) -> Tensor | None:
        del stack
        return None

    def enter(self, stack: str, state: Tensor) -> Tensor:
        return self.run.enter(stack, state)

    def routes(self, layer: Layer, name: str, x: Tensor) -> Tensor | None:
        return self.run.route(layer, name, x)

    def branch(self, layer: Layer, ends: States | None = None) -> BranchFunction:
        del ends  # the candidate's own memory stands in
        return lambda name, x: self.run.branch(layer, name, x).to(self.dtype)

    def head(self, state: Tensor) -> Tensor | None:
        del state
        return None


class Full:
    """Our own decoder: nothing of the candidate's is run."""

    full = True

    def __init__(self, bound: BoundManifest, weight: Weight, dtype: torch.dtype, device: torch.device) -> None:
        from blockaudit.reference.decoder import FullReference

        self.dtype, self._device = dtype, device
        self._decoder = FullReference(bound, weight, dtype, device)

    def begin(self, inputs: Inputs) -> None:
        self._context = self._decoder.context({k: v.to(self._device) for k, v in inputs.items()})

    def embed(self, stack: str) -> Tensor | None:
        return self._decoder.embed(stack, self._context)

    def enter(self, stack: str, state: Tensor) -> Tensor:
        return self._decoder.enter(stack, state)

    def routes(self, layer: Layer, name: str, x: Tensor) -> Tensor | None:
        return self._decoder.routes(layer.stack, layer.number, name, x)

    def branch(self, layer: Layer, ends: States | None = None) -> BranchFunction:
        memory = (ends or {}).get("encoder")
        return lambda name, x: self._decoder.branch(layer.stack, layer.number, name, x, self._context, memory)

    def head(self, state: Tensor) -> Tensor | None:
        return self._decoder.head(state, self._context)
