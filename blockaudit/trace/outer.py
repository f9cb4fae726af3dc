"""What lies between layers: embedding, embedding norm, final norm, logits."""

from __future__ import annotations

from torch import Tensor

from blockaudit.records.conformance import Mode
from blockaudit.reference import assembly
from blockaudit.reference.assembly import NormSite
from blockaudit.trace import local
from blockaudit.trace.candidate import Segment, Sites
from blockaudit.trace.free import Free, counted
from blockaudit.trace.judge import Expected, Judge
from blockaudit.trace.scene import Scene


def compare(judge: Judge, scene: Scene, segment: Segment, sites: Sites, free: Free, modes: frozenset[Mode]) -> None:
    """The sites of one segment that is no layer; the chains move on over it."""
    for stack in scene.run.stacks:
        if scene.run.begins_in(segment, stack):
            _begin(judge, scene, stack, sites, free, modes)
        if scene.run.ends_in(segment, stack):
            _end(judge, scene, stack, sites, free, modes)
    if "logits" in sites:
        _head(judge, scene, sites, free, modes)


def declared(scene: Scene, stack: str) -> list[str]:
    """The sites beside the layers that the manifest gives a stack."""
    prefix = scene.prefix(stack)
    norms = [s for s in ("embed_norm", "final_norm") if assembly.norm_site(scene.bound, f"{stack}.{s}") is not None]
    return [prefix + "embed", *(prefix + s for s in norms)]


def _begin(judge: Judge, scene: Scene, stack: str, sites: Sites, free: Free, modes: frozenset[Mode]) -> None:
    prefix, valid = scene.prefix(stack), scene.valid(stack)
    site = assembly.norm_site(scene.bound, f"{stack}.embed_norm")
    given = sites.get(prefix + "embed")
    embeds = [made for chain in free.chains if (made := chain.begin(stack, given)) is not None]
    if scene.main.full:
        _free(judge, prefix + "embed", sites, embeds, valid, modes & {"local", "end-to-end"})
    elif "local" in modes and given is not None:
        judge.nothing(prefix + "embed", "local", given)
    if site is not None and embeds:
        for chain in free.chains:
            chain.states[stack] = chain.norm(site, chain.states[stack])
        if prefix + "embed_norm" in sites:
            if "local" in modes and given is not None:
                local.norm(judge, scene, prefix + "embed_norm", site, given, sites[prefix + "embed_norm"], valid)
                local.probed(
                    judge, scene, prefix + "embed_norm", site, scene.run.outer_norms().get(prefix + "embed_norm")
                )
            values = [c.states[stack] for c in free.chains]
            _free(judge, prefix + "embed_norm", sites, values, valid, modes & {"end-to-end"})
    for chain in free.chains:
        if stack in chain.states:
            chain.enter(stack)


def _end(judge: Judge, scene: Scene, stack: str, sites: Sites, free: Free, modes: frozenset[Mode]) -> None:
    name, valid = scene.prefix(stack) + "final_norm", scene.valid(stack)
    site = assembly.norm_site(scene.bound, f"{stack}.final_norm")
    last = scene.run.left(stack)
    if site is not None:
        for chain in free.chains:
            if stack in chain.states:
                chain.states[stack] = chain.norm(site, chain.states[stack])
        if name in sites:
            if "local" in modes and last is not None:
                local.norm(judge, scene, name, site, last, sites[name], valid)
                local.probed(judge, scene, name, site, scene.run.outer_norms().get(name))
            values = [c.states[stack] for c in free.chains if stack in c.states]
            _free(judge, name, sites, values, counted(valid, free.strayed.get(stack)), modes & {"end-to-end"})
    given = scene.run.gives(stack, sites.get(name), site is not None)
    if given is not None:
        scene.run.outputs[stack] = given
    for chain in free.chains:
        chain.end(stack)


def _head(judge: Judge, scene: Scene, sites: Sites, free: Free, modes: frozenset[Mode]) -> None:
    if not scene.run.stacks:
        judge.nothing("logits", "local", sites["logits"])
        return
    stack = scene.run.stacks[-1]
    logits, valid = sites["logits"], scene.valid(stack)
    site = assembly.norm_site(scene.bound, f"{stack}.final_norm")
    last = head_input(scene, sites, site)
    own = scene.main.head(last.to(scene.main.dtype)) if last is not None else None
    if last is not None and (own is None or own.shape != logits.shape):
        judge.nothing("logits", "local", logits)
        return
    noise = scene.noise
    if "local" in modes and last is not None and own is not None:
        noisy = noise.head(scene.few(last).to(noise.dtype)) if noise is not None else None
        judge.add("logits", "local", logits, Expected(own, noisy), valid=valid)
    if "end-to-end" in modes:
        ends = [c.reference.head(c.ends[stack]) for c in free.chains if stack in c.ends]
        values = [v for v in ends if v is not None and v.shape[-1] == logits.shape[-1]]
        _free(judge, "logits", sites, values, counted(valid, free.strayed.get(stack)), modes & {"end-to-end"})


def head_input(scene: Scene, sites: Sites, site: NormSite | None) -> Tensor | None:
    """What the head should read: the candidate's final state; where it lacks the final norm `site`, ours."""
    stack = scene.run.stacks[-1]
    given = scene.run.outputs.get(stack)
    if given is None or site is None or f"{scene.prefix(stack)}final_norm" in sites:
        return given
    return scene.exact()(site, given.to(scene.wide))


def _free(
    judge: Judge, site: str, sites: Sites, values: list[Tensor], valid: Tensor | None, modes: frozenset[Mode]
) -> None:
    for mode in sorted(modes):
        if values and site in sites:
            judge.add(site, mode, sites[site], Expected(values[0], values[1] if len(values) > 1 else None), valid=valid)
