"""What one batch is compared in: the candidate's run, the references beside it, the weights in any dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from blockaudit.records.bound import BoundManifest
from blockaudit.records.conformance import SiteResult
from blockaudit.records.sites import order
from blockaudit.reference import assembly
from blockaudit.reference.assembly import Block, NormFunction, NormSite
from blockaudit.trace.candidate import Segment, Sites
from blockaudit.trace.models import Inputs
from blockaudit.trace.reference import Reference
from blockaudit.trace.running import Running
from blockaudit.trace.weights import Weights


@dataclass
class Scene:
    """One batch. `main` is the reference in float32, `noise` the one that the noise is measured with (on `few` tokens).

    `dtype` is the one judged; `wide` the one in which norms and sums are true; `tokens` how many of the first row the
    noise is measured on (None: all of it).
    """

    run: Running
    bound: BoundManifest
    weights: Weights
    dtype: torch.dtype
    main: Reference
    noise: Reference | None
    inputs: Inputs
    several: bool
    tokens: int | None = None

    def few(self, x: Tensor) -> Tensor:
        """The part of a value [B, S, ...] that the noise is measured on."""
        return x[:1, : self.tokens]

    @property
    def low(self) -> bool:
        return self.dtype != torch.float32

    @property
    def wide(self) -> torch.dtype:
        return torch.float32 if self.low else torch.float64

    def weight(self, dtype: torch.dtype) -> Callable[[str], Tensor]:
        """Weights as the candidate's dtype holds them, widened: rounding them is not an error of the candidate."""
        return lambda key: self.weights.tensor(key, self.dtype, dtype)

    def exact(self) -> NormFunction:
        """Norms by their formula, in the wide dtype."""
        return assembly.exact(self.weight(self.wide))

    def rounding(self) -> NormFunction:
        """Norms as the dtype judged rounds them."""
        weight = self.weight(self.dtype)
        return assembly.rounded(weight) if self.low else assembly.exact(weight)

    def prefix(self, stack: str) -> str:
        """What the names of a stack's sites begin with."""
        return f"{stack}." if self.several else ""

    def valid(self, stack: str) -> Tensor | None:
        """Rows that count [B, S]: those of no padding; None where every row does."""
        mask = self.inputs.get("attention_mask")
        if mask is None or (self.several and stack == "decoder") or bool(mask.all()):
            return None
        return mask.to(self.run.device).bool()

    def outputs(self, dtype: torch.dtype, few: bool = False) -> dict[str, Tensor]:
        """What the candidate's earlier stacks gave; of what the noise is measured on, where `few`."""
        return {k: (self.few(v) if few else v).to(dtype) for k, v in self.run.outputs.items()}


@dataclass(frozen=True)
class Seen:
    """One layer (or what lies between layers) as it was seen: the candidate's sites, and the run that made them."""

    scene: Scene
    segment: Segment
    block: Block | None
    sites: Sites  # by `branch.site`
    enter: Tensor | None
    results: tuple[SiteResult, ...]

    @property
    def run(self) -> Running:
        return self.scene.run


def ordered(block: Block, values: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Sites of a layer in the order in which they are executed."""
    names = [b.name for b in block.branches]
    return sorted(values.items(), key=lambda item: order(f"layers.0.{item[0]}", names))


def norm_at(block: Block, site: str) -> NormSite | None:
    """The norm whose output a site of a layer is."""
    branch, _, name = site.rpartition(".")
    if not branch or name not in ("norm_in", "norm_out", "state"):
        return None
    return block.branch(branch).norms.get("norm_post" if name == "state" else name)
