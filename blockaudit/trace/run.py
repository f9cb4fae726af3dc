"""A candidate beside the reference on one batch, a layer at a time: the three modes of comparison.

`local` computes every site from the candidate's own inputs to it, so that nothing accumulates. `layer` feeds each layer
of the candidate the reference's state. `end-to-end` lets both run free. A layer's weights are in memory while it runs;
those of the next are read meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from blockaudit.records.bound import BoundManifest
from blockaudit.records.conformance import Mode
from blockaudit.reference import assembly
from blockaudit.reference.assembly import Block
from blockaudit.trace import local, outer
from blockaudit.trace.candidate import Segment, Sites
from blockaudit.trace.free import Chain, Free
from blockaudit.trace.judge import Judge
from blockaudit.trace.models import Inputs
from blockaudit.trace.program import Layer
from blockaudit.trace.ranks import Share
from blockaudit.trace.reference import Reference
from blockaudit.trace.running import Runnable, Running
from blockaudit.trace.scene import Scene, Seen
from blockaudit.trace.weights import Weights

# Called with each layer's values once they were compared: identification, telemetry, a trace that is written.
Observer = Callable[[Seen], None]
# A reference for one run, in one dtype, under one manifest.
Make = Callable[[BoundManifest, torch.dtype, Running], Reference]
# Compares one segment of a candidate: its sites, and the block where it is a layer.
Compare = Callable[[Segment, Sites, "Block | None"], None]
# Tokens of a long row that its noise is measured on, where no token sees those behind it.
_TOKENS = 128


class Pass:
    """One candidate in one dtype, over batches. `share`: which layers this process compares."""

    share = Share()

    def __init__(
        self,
        candidate: Runnable,
        bound: BoundManifest,
        weights: Weights,
        judge: Judge,
        modes: frozenset[Mode],
        make: Make,
        layers: range | None = None,
    ) -> None:
        self.candidate, self.bound, self.weights, self.judge = candidate, bound, weights, judge
        self.modes, self.make, self.layers = modes, make, layers
        self.dtype = candidate.dtype

    def scene(self, run: Running, inputs: Inputs, bound: BoundManifest | None = None) -> Scene:
        """The references beside a run, begun on its inputs; under another manifest where one is given."""
        bound = bound or self.bound
        main = self.make(bound, torch.float32, run)
        main.begin(inputs)
        noise = None
        if main.full:
            noise = self.make(bound, torch.float64 if self.dtype == torch.float32 else self.dtype, run)
        several = len(self.candidate.stacks) > 1
        scene = Scene(run, bound, self.weights, self.dtype, main, noise, inputs, several, _tokens(bound, inputs))
        if noise is not None:
            noise.begin({k: scene.few(v) for k, v in inputs.items()})
        return scene

    def batch(
        self, inputs: Inputs, observers: Sequence[Observer], own: Sequence[Observer] = (), probe: bool = False
    ) -> None:
        """Run one batch, every site compared in every mode; with `probe` every norm is asked on probe rows as well.

        own: observers of what this rank compares, before the others; of several ranks each runs every layer and
        compares its share. Raises RankLostError.
        """
        run = self.candidate.run(inputs)
        scene = self.scene(run, inputs)
        compare = self.comparing(scene, probe)
        for i, segment in enumerate(run.segments):
            self.weights.prefetch(k for following in run.segments[i + 1 : i + 2] for k in run.reads(following))
            sites = run.advance(segment)
            block, enter = None, None
            if segment.layer is not None:
                enter = run.entering(segment)
                block = assembly.block(self.bound, segment.layer.stack, segment.layer.number)
            compare(segment, sites, block)
            results, mine = self.judge.settle(), self.share.owns(segment.layer.number if segment.layer else None)
            if not mine:
                self.judge.forget(len(results))
            seen = Seen(scene, segment, block, sites, enter, tuple(results) if mine else ())
            for observe in (*(own if mine else ()), *observers):
                observe(seen)
            self.share.check()
            self.weights.release()

    def comparing(self, scene: Scene, probe: bool) -> Compare:
        """What compares the segments of one batch, in order, with the reference of the manifest."""
        chains = [Chain(scene, scene.main, False, None)]
        if scene.noise is not None:
            chains.append(Chain(scene, scene.noise, scene.low, 1))
        free = Free(scene, chains)

        def compare(segment: Segment, sites: Sites, block: Block | None) -> None:
            if segment.layer is None or block is None:
                outer.compare(self.judge, scene, segment, sites, free, self.modes)
            else:
                self._layer(scene, segment, segment.layer, block, sites, free, probe)

        return compare

    def _layer(
        self, scene: Scene, segment: Segment, at: Layer, block: Block, sites: Sites, free: Free, probe: bool
    ) -> None:
        judged = (self.layers is None or at.number in self.layers) and self.share.owns(at.number)
        if judged and "local" in self.modes:
            local.layer(self.judge, scene, at, block, sites, scene.run.entering(segment))
            if probe:
                self._probe(scene, at, block)
        if self.modes & {"layer", "end-to-end"}:
            free.layer(self.judge, segment, at, block, sites, self.modes, judged)

    def _probe(self, scene: Scene, at: Layer, block: Block) -> None:
        prefix = scene.prefix(at.stack) + f"layers.{at.number}."
        for part in block.branches:
            for name, site in part.norms.items():
                shown = "state" if name == "norm_post" else name
                local.probed(self.judge, scene, f"{prefix}{part.name}.{shown}", site, at.norm(part.name, name))

    def prefix(self, stack: str) -> str:
        """What the names of a stack's sites begin with."""
        return f"{stack}." if len(self.candidate.stacks) > 1 else ""


def _tokens(bound: BoundManifest, inputs: Inputs) -> int | None:
    """How many tokens of the first row are a computation of their own: all (None) where later ones are seen."""
    kinds = [str(f.value) for name, f in bound.fields.items() if name.endswith(".kind")]
    attention = [kind for kind in kinds if "attention" in kind]
    mask = inputs.get("attention_mask")
    whole = mask is None or bool(mask[:1].all())
    return _TOKENS if whole and attention and all("causal" in kind for kind in attention) else None
