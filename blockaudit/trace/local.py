"""Local comparison: every site computed from the candidate's own inputs to it, so that nothing accumulates."""

from __future__ import annotations

import torch
from torch import Tensor

from blockaudit.graph.norms import Norm
from blockaudit.reference import assembly
from blockaudit.reference.assembly import Block, BranchFunction, NormSite
from blockaudit.reference.norms import variants
from blockaudit.trace import probes
from blockaudit.trace.candidate import Sites
from blockaudit.trace.judge import Expected, Judge
from blockaudit.trace.program import Layer
from blockaudit.trace.scene import Scene, norm_at, ordered

# Rows on which correct spellings of a norm round far apart: they are judged by their error alone.
PROBE_SEED = 0


def layer(judge: Judge, scene: Scene, at: Layer, block: Block, sites: Sites, enter: Tensor | None) -> None:
    """One layer's sites, on the state that enters it."""
    judged = scene.run.judged(block, sites)
    if enter is None:
        enter = _some_state(sites)  # nothing that is made of it is judged
    if enter is None:
        return
    prefix = scene.prefix(at.stack) + f"layers.{at.number}."
    valid = scene.valid(at.stack)
    wide = {k: v.to(scene.wide) for k, v in sites.items()}
    expected = assembly.local(block, wide, enter.to(scene.wide), _branch(scene, at, judged), scene.exact())
    noisy = _noisy(scene, at, block, sites, enter, judged)
    same = _routed_alike(scene, at, block, sites, enter)
    for site, value in ordered(block, expected):
        if site not in sites or (judged is not None and site not in judged):
            continue  # told of as a missing site, or as one whose inputs are
        norm, source = norm_at(block, site), None
        if norm is not None and scene.low:
            source = assembly.source_of(block, site, sites, enter)
        spellings = spelled(scene, norm, source) if norm is not None and source is not None else ()
        branch, _, name = site.rpartition(".")
        counted = _and(valid, same.get(branch)) if name == "branch" else valid
        judge.add(
            prefix + site, "local", sites[site], Expected(value, noisy.get(site), spellings), valid=counted,
            is_norm=norm is not None,
        )  # fmt: skip
    if not scene.main.full:
        for site in sites:
            if site.endswith(".branch"):
                judge.nothing(prefix + site, "local", sites[site])


def norm(
    judge: Judge, scene: Scene, name: str, site: NormSite, source: Tensor, value: Tensor, valid: Tensor | None
) -> None:
    """A norm that belongs to no layer: source and value as the candidate gives them."""
    judge.add(
        name, "local", value,
        Expected(
            scene.exact()(site, source.to(scene.wide)), scene.rounding()(site, source),
            spelled(scene, site, source) if scene.low else (),
        ),
        valid=valid, is_norm=True,
    )  # fmt: skip


def probed(judge: Judge, scene: Scene, name: str, site: NormSite, found: Norm | None) -> None:
    """A norm of the candidate asked on rows in which no epsilon, offset or centring can hide."""
    ask = scene.run.norm(found) if found is not None else None
    if found is None or ask is None:
        return
    width = tuple(found.source.meta["val"].shape)[-1]
    made = probes.rows(width, seed=PROBE_SEED, dtype=scene.dtype, device=scene.run.device)
    answers = ask(torch.cat(list(made.values())))
    start = 0
    for kind, rows in made.items():
        answer = answers[start : start + len(rows)]
        start += len(rows)
        if answer.shape != rows.shape:
            return
        expected = Expected(scene.exact()(site, rows.to(scene.wide)), scene.rounding()(site, rows))
        judge.add(name, "local", answer, expected, probe=kind)


def spelled(scene: Scene, site: NormSite, source: Tensor) -> tuple[Tensor, ...]:
    """The correct roundings of a norm of the candidate's own input, the declared one first."""
    w, b, state = site.parameters(scene.weight(scene.dtype))
    return tuple(variants(site.spec, source, w, b, state or None))


def _some_state(sites: Sites) -> Tensor | None:
    """A value of the shape that the state has."""
    return next((torch.zeros_like(value) for value in sites.values()), None)


def _branch(scene: Scene, at: Layer, judged: frozenset[str] | None) -> BranchFunction | None:
    """Our branch functions in float32, on values in the wide dtype; of those that are not judged, any value."""
    if not scene.main.full:
        return None if judged is None else lambda name, x: torch.zeros_like(x)
    ours = scene.main.branch(at, scene.outputs(scene.main.dtype))

    def branch(name: str, x: Tensor) -> Tensor:
        if judged is not None and f"{name}.branch" not in judged:
            return torch.zeros_like(x)
        return ours(name, x.to(scene.main.dtype))

    return branch


def _noisy(
    scene: Scene, at: Layer, block: Block, sites: Sites, enter: Tensor, judged: frozenset[str] | None
) -> dict[str, Tensor]:
    """Every site of the layer in the dtype judged, on the candidate's own inputs; branches on few tokens."""
    anything: BranchFunction | None = None if judged is None else lambda name, x: torch.zeros_like(x)
    found = assembly.local(block, sites, enter, anything, scene.rounding())
    if scene.noise is None:
        return found
    dtype = scene.noise.dtype
    first = {k: scene.few(v).to(dtype) for k, v in sites.items()}
    branch = scene.noise.branch(at, scene.outputs(dtype, few=True))
    for part in block.branches:
        inside = assembly.read_by(block, part, first, scene.few(enter).to(dtype))
        if inside is not None and (judged is None or f"{part.name}.branch" in judged):
            found[f"{part.name}.branch"] = branch(part.name, inside)
    return found


def _routed_alike(scene: Scene, at: Layer, block: Block, sites: Sites, enter: Tensor) -> dict[str, Tensor]:
    """By branch of experts: the rows [B, S] that go to the same experts in float32 as in the candidate's own dtype.

    A router that is as good as undecided may fall either way by rounding alone; what the row then is, is no error.
    """
    found: dict[str, Tensor] = {}
    for part in block.branches:
        theirs = scene.run.routes(at, part.name)
        inside = assembly.read_by(block, part, sites, enter)
        if theirs is None or inside is None or not scene.main.full:
            continue
        ours = scene.main.routes(at, part.name, inside.to(scene.main.dtype))
        if ours is not None and ours.shape == theirs.shape:
            found[part.name] = (ours == theirs).all(-1)
    return found


def _and(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a & b
