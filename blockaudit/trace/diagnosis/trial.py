"""An edit tried: what was seen of a candidate, held to the reference with the edit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blockaudit.records.conformance import SiteResult
from blockaudit.reference import assembly
from blockaudit.reference.assembly import Block, BranchFunction, NormSite
from blockaudit.trace import local, outer
from blockaudit.trace.diagnosis.edits import Edit, rebound, together
from blockaudit.trace.judge import Expected, Judge
from blockaudit.trace.models import Inputs
from blockaudit.trace.program import Layer
from blockaudit.trace.reference import Reference, States
from blockaudit.trace.run import Pass
from blockaudit.trace.scene import Scene, Seen


@dataclass
class Elsewhere:
    """A reference whose branches run with the weights of other layers."""

    inner: Reference
    layers: Mapping[str, int]
    full: bool = True

    def __post_init__(self) -> None:
        self.dtype: torch.dtype = self.inner.dtype
        self.full = self.inner.full

    def _at(self, layer: Layer, name: str) -> Layer:
        return dataclasses.replace(layer, number=self.layers.get(name, layer.number))

    def begin(self, inputs: Inputs) -> None:
        self.inner.begin(inputs)

    def embed(self, stack: str) -> Tensor | None:
        return self.inner.embed(stack)

    def enter(self, stack: str, state: Tensor) -> Tensor:
        return self.inner.enter(stack, state)

    def routes(self, layer: Layer, name: str, x: Tensor) -> Tensor | None:
        return self.inner.routes(self._at(layer, name), name, x)

    def branch(self, layer: Layer, ends: States | None = None) -> BranchFunction:
        return lambda name, x: self.inner.branch(self._at(layer, name), ends)(name, x)

    def head(self, state: Tensor) -> Tensor | None:
        return self.inner.head(state)


@dataclass
class Trial:
    """One layer, or what lies between layers, as it was seen; asked again under edits."""

    work: Pass
    seen: Seen

    @property
    def prefix(self) -> str:
        layer = self.seen.segment.layer
        return "" if layer is None else f"{self.work.prefix(layer.stack)}layers.{layer.number}."

    def sites(self) -> set[str]:
        """Names of the sites that the candidate gives."""
        return {self.prefix + s for s in self.seen.sites}

    def declared(self, edits: Sequence[Edit] = ()) -> list[str]:
        """Names of the sites that there should be, with the edits; logits are nobody's to expect."""
        if self.seen.block is not None:
            return [self.prefix + s for s in assembly.names(together(edits)(self.seen.block))]
        return [s for s in _between_names(self.seen, edits) if s != "logits"]

    def run(self, edits: Sequence[Edit]) -> list[SiteResult]:
        """The local comparison under these edits; probe rows too, where a norm failed on them."""
        judge, scene = Judge(self.work.dtype, self.work.judge.policy), self._scene(edits)
        layer, enter = self.seen.segment.layer, self.seen.enter
        if layer is None:
            between(judge, scene, self.seen, edits)
        elif self.seen.block is not None:
            block = together(edits)(self.seen.block)
            local.layer(judge, scene, layer, block, self.seen.sites, enter)
            self._probe(judge, scene, layer, block)
        return judge.settle()

    def _probe(self, judge: Judge, scene: Scene, layer: Layer, block: Block) -> None:
        probed = {r.site for r in self.seen.results if r.probe is not None and r.passed is False}
        for part in block.branches:
            for name, site in part.norms.items():
                full = f"{self.prefix}{part.name}.{'state' if name == 'norm_post' else name}"
                if full in probed:
                    local.probed(judge, scene, full, site, layer.norm(part.name, name))

    def _scene(self, edits: Sequence[Edit]) -> Scene:
        scene = self.seen.scene
        if any(e.rebind is not None for e in edits):
            scene = self.work.scene(scene.run, scene.inputs, rebound(scene.bound, edits))
        layers = {name: number for e in edits for name, number in e.elsewhere}
        if layers:
            noise = Elsewhere(scene.noise, layers) if scene.noise is not None else None
            scene = dataclasses.replace(scene, main=Elsewhere(scene.main, layers), noise=noise)
        return scene


def outer_norm(scene: Scene, field: str, edits: Sequence[Edit] = ()) -> NormSite | None:
    """The norm beside the layers under `field` (`decoder.final_norm`), with the edits."""
    site = assembly.norm_site(scene.bound, field)
    for edit in edits:
        if edit.outer is not None and edit.owner == field:
            site = edit.outer(site)
    return site


def _between_names(seen: Seen, edits: Sequence[Edit]) -> list[str]:
    scene, names = seen.scene, list[str]()
    for stack in seen.run.stacks:
        prefix = scene.prefix(stack)
        if seen.run.begins_in(seen.segment, stack):
            names.append(prefix + "embed")
            names += [prefix + "embed_norm"] if outer_norm(scene, f"{stack}.embed_norm", edits) is not None else []
        if seen.run.ends_in(seen.segment, stack):
            names += [prefix + "final_norm"] if outer_norm(scene, f"{stack}.final_norm", edits) is not None else []
    return names + (["logits"] if "logits" in seen.sites else [])


def between(judge: Judge, scene: Scene, seen: Seen, edits: Sequence[Edit]) -> None:
    """What lies between layers, each site from the candidate's own input to it."""
    sites, names = seen.sites, _between_names(seen, edits)
    for stack in scene.run.stacks:
        prefix, valid = scene.prefix(stack), scene.valid(stack)
        embed = prefix + "embed"
        if embed in names and embed in sites and scene.main.full:
            _add(judge, embed, sites[embed], valid, scene, lambda r, s=stack: r.embed(s))
        if f"{prefix}embed_norm" in names and embed in sites:
            _norm(judge, scene, seen, f"{stack}.embed_norm", sites[embed], edits)
        last = scene.run.left(stack)
        if f"{prefix}final_norm" in names and last is not None:
            _norm(judge, scene, seen, f"{stack}.final_norm", last, edits)
    state = outer.head_input(scene, sites, outer_norm(scene, f"{scene.run.stacks[-1]}.final_norm", edits))
    if "logits" in names and state is not None:
        valid = scene.valid(scene.run.stacks[-1])
        _add(judge, "logits", sites["logits"], valid, scene, lambda r: r.head(_rows(state, r, scene).to(r.dtype)))


def _rows(state: Tensor, reference: Reference, scene: Scene) -> Tensor:
    return state if reference is scene.main else scene.few(state)


def _add(
    judge: Judge, name: str, value: Tensor, valid: Tensor | None, scene: Scene,
    of: Callable[[Reference], Tensor | None],
) -> None:  # fmt: skip
    own = of(scene.main)
    if own is not None and own.shape == value.shape:
        noisy = of(scene.noise) if scene.noise is not None else None
        judge.add(name, "local", value, Expected(own, noisy), valid=valid)


def _norm(judge: Judge, scene: Scene, seen: Seen, field: str, source: Tensor, edits: Sequence[Edit]) -> None:
    stack, _, short = field.partition(".")
    site, name = outer_norm(scene, field, edits), scene.prefix(stack) + short
    if site is None or name not in seen.sites:
        return
    times = max([1, *(e.times for e in edits if e.owner == field)])
    for _ in range(times - 1):
        source = scene.exact()(site, source.to(scene.wide)).to(source.dtype)
    local.norm(judge, scene, name, site, source, seen.sites[name], scene.valid(stack))
    if times == 1 and any(r.site == name and r.probe is not None and r.passed is False for r in seen.results):
        local.probed(judge, scene, name, site, scene.run.outer_norms().get(name))
