"""What a pass asks of a candidate, whether its operators are run or its values were recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from blockaudit.graph.norms import Norm
from blockaudit.records.sites import Site
from blockaudit.reference.assembly import Block
from blockaudit.trace.candidate import Segment, Sites
from blockaudit.trace.models import Inputs
from blockaudit.trace.program import Layer


class Running(Protocol):
    """A candidate on one batch, segment by segment. `stacks` are those that it has, in order of execution.

    `outputs` is what each stack that has run gives, behind its final norm.
    """

    outputs: dict[str, Tensor]

    @property
    def device(self) -> torch.device: ...

    @property
    def stacks(self) -> Sequence[str]: ...

    @property
    def segments(self) -> Sequence[Segment]: ...

    def reads(self, segment: Segment) -> Sequence[str]:
        """Keys of the checkpoint that a segment will read."""
        ...

    def advance(self, segment: Segment) -> Sites:
        """The values at the sites of the next segment: by `branch.site` in a layer, else by their whole name."""
        ...

    def entering(self, segment: Segment) -> Tensor | None:
        """The state that entered the layer that ran last; None where nobody knows."""
        ...

    def judged(self, block: Block, sites: Sites) -> frozenset[str] | None:
        """The sites of the layer that ran last whose inputs are known; None: all of them."""
        ...

    def begins_in(self, segment: Segment, stack: str) -> bool: ...

    def ends_in(self, segment: Segment, stack: str) -> bool: ...

    def gives(self, stack: str, normed: Tensor | None, declared: bool) -> Tensor | None:
        """What a stack that has run gives. normed: its final norm's output, which the manifest declares or does not."""
        ...

    def left(self, stack: str) -> Tensor | None:
        """The state that left the last layer of a stack."""
        ...

    def rerun(self, segment: Segment, state: Tensor, ends: Mapping[str, Tensor]) -> Sites: ...

    def branch(self, layer: Layer, name: str, x: Tensor) -> Tensor: ...

    def enter(self, stack: str, state: Tensor) -> Tensor: ...

    def routes(self, layer: Layer, name: str) -> Tensor | None: ...

    def route(self, layer: Layer, name: str, x: Tensor) -> Tensor | None: ...

    def norm(self, norm: Norm) -> Callable[[Tensor], Tensor] | None: ...

    def outer_norms(self) -> Mapping[str, Norm]: ...


class Runnable(Protocol):
    """A candidate in one dtype. `recorded`: its values are given, and nothing of it can be run on others."""

    @property
    def label(self) -> str: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def stacks(self) -> Sequence[str]: ...

    @property
    def recorded(self) -> bool: ...

    def run(self, inputs: Inputs) -> Running: ...


def named(segment: Segment, sites: Sites, several: bool) -> dict[str, Tensor]:
    """The sites of a segment by the names that a trace has for them. several: whether there are two stacks."""
    if segment.layer is None:
        return dict(sites)
    at = segment.layer
    found: dict[str, Tensor] = {}
    for name, value in sites.items():
        branch, _, site = name.rpartition(".")
        found[Site(site, at.stack if several else "", at.number, branch).name] = value
    return found
