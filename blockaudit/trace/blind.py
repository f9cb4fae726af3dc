"""Epsilons that nobody could tell: the reference itself, with a wrong one, stays within the tolerance.

Asked only where it is not plain already: of norms that were compared on token rows alone and whose epsilon no numbers
gave, and, where the policy is a user's own, of every norm, on its probe rows too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace
from torch import Tensor

from blockaudit.graph.norms import Norm
from blockaudit.records.conformance import Blind, SiteResult
from blockaudit.records.layers import ranges
from blockaudit.reference import assembly
from blockaudit.reference.assembly import NormSite
from blockaudit.trace import local, probes
from blockaudit.trace.identify.solved import CONVENTIONAL
from blockaudit.trace.judge import Expected, Judge
from blockaudit.trace.run import Pass
from blockaudit.trace.scene import Scene, Seen

_FAR = 10.0
# (field, layer, the wrong epsilon)
Question = tuple[str, int | None, float]


@dataclass
class Blindness:
    """An observer of one pass. `own`: the policy is a user's; `known`: whether a norm's epsilon was identified."""

    work: Pass
    own: bool
    known: Callable[[str, int | None], bool]
    asked: set[Question] = field(default_factory=set[Question])
    found: dict[Question, Blind] = field(default_factory=dict[Question, Blind])

    def look(self, seen: Seen) -> None:
        """Every norm of what was seen that has an epsilon."""
        for name, layer, site, source, norm in _norms(seen, self.work):
            epsilon = site.spec.epsilon
            ask = seen.run.norm(norm) if norm is not None and "local" in self.work.modes else None
            if not epsilon or (not self.own and (ask is not None or self.known(site.field, layer))):
                continue
            for wrong in alternatives(epsilon):
                question = (f"{site.field}.epsilon", layer, wrong)
                self.asked.add(question)
                results = self._tried(seen.scene, name, site, wrong, source, ask is not None)
                if results and all(r.passed for r in results):
                    self.found[question] = _blind(question, epsilon, results, ask is not None)

    def _tried(
        self, scene: Scene, name: str, site: NormSite, wrong: float, source: Tensor, probed: bool
    ) -> list[SiteResult]:
        """How the norm with another epsilon would be judged, in every mode that was asked for."""
        judge = Judge(self.work.dtype, self.work.judge.policy)
        other = replace(site, spec=replace(site.spec, epsilon=wrong))
        exact, rounding = scene.exact(), scene.rounding()
        candidate, value = rounding(other, source), exact(site, source.to(scene.wide))
        noisy = rounding(site, source)
        for mode in sorted(self.work.modes):
            if mode == "local":
                spellings = local.spelled(scene, site, source) if scene.low else ()
                judge.add(name, mode, candidate, Expected(value, noisy, spellings), is_norm=True)
            else:
                judge.add(name, mode, candidate, Expected(value, noisy if scene.noise is not None else None))
        made = probes.rows(source.shape[-1], seed=local.PROBE_SEED, dtype=scene.dtype, device=source.device)
        for kind, rows in made.items() if probed else ():
            expected = Expected(exact(site, rows.to(scene.wide)), rounding(site, rows))
            judge.add(name, "local", rounding(other, rows), expected, probe=kind)
        return judge.settle()


def alternatives(epsilon: float) -> tuple[float, ...]:
    """Epsilons that are mistaken for this one: ten times and a tenth, and the conventional ones on either side."""
    place = bisect_left(CONVENTIONAL, epsilon * (1 - 1e-6))
    below = CONVENTIONAL[place - 1 : place] if place else ()
    above = [c for c in CONVENTIONAL[place:] if c > epsilon * (1 + 1e-6)][:1]
    near = (epsilon * _FAR, epsilon / _FAR, *above, *below)
    return tuple(dict.fromkeys(float(f"{e:.6g}") for e in near))


def merged(passes: Sequence[Blindness]) -> list[Blind]:
    """What no pass could tell, one entry for each field: its layers, and the farthest wrong value that passes."""
    groups: dict[tuple[str, float], list[tuple[int | None, Blind]]] = {}
    for question in dict.fromkeys(q for p in passes for q in p.asked):
        name, layer, wrong = question
        told = [p.found.get(question) for p in passes if question in p.asked]
        blind = [b for b in told if b is not None]
        if blind and len(blind) == len(told):
            groups.setdefault((name, wrong), []).append((layer, blind[-1]))
    return list(_farthest(groups))


def _farthest(groups: dict[tuple[str, float], list[tuple[int | None, Blind]]]) -> Iterator[Blind]:
    named: set[tuple[str, int | None]] = set()

    def distance(item: tuple[tuple[str, float], list[tuple[int | None, Blind]]]) -> float:
        (_, wrong), rows = item
        return -max(wrong / rows[0][1].declared, rows[0][1].declared / wrong)

    for (name, _), rows in sorted(groups.items(), key=distance):
        fresh = [(layer, b) for layer, b in rows if (name, layer) not in named]
        named |= {(name, layer) for layer, _ in fresh}
        if fresh:
            yield replace(max((b for _, b in fresh), key=_strain), layers=ranges(n for n, _ in fresh if n is not None))


def _strain(blind: Blind) -> float:
    return blind.effect / blind.tolerance if blind.tolerance else 0.0


def _blind(question: Question, declared: float, results: Iterable[SiteResult], probed: bool) -> Blind:
    worst = max(results, key=lambda r: r.observed / r.tolerance if r.tolerance else 0.0)
    name, _, wrong = question
    return Blind(name, "", declared, wrong, worst.metric, worst.observed, worst.tolerance, worst.dtype, probed)


def _norms(seen: Seen, work: Pass) -> Iterator[tuple[str, int | None, NormSite, Tensor, Norm | None]]:
    """(site, layer, the declared norm, what it read, the norm that ran) of every norm that was compared."""
    block, layer = seen.block, seen.segment.layer
    if block is None or layer is None or seen.enter is None:
        yield from _outer(seen)
        return
    if work.layers is not None and layer.number not in work.layers:
        return
    for part in block.branches:
        for name, site in part.norms.items():
            at = f"{part.name}.{'state' if name == 'norm_post' else name}"
            source = assembly.source_of(block, at, seen.sites, seen.enter)
            if source is not None and at in seen.sites:
                prefix = work.prefix(layer.stack) + f"layers.{layer.number}."
                yield prefix + at, layer.number, site, source, layer.norm(part.name, name)


def _outer(seen: Seen) -> Iterator[tuple[str, int | None, NormSite, Tensor, Norm | None]]:
    norms = seen.run.outer_norms()
    for stack in seen.run.stacks:
        prefix = seen.scene.prefix(stack)
        sources = {"embed_norm": seen.sites.get(prefix + "embed"), "final_norm": seen.run.left(stack)}
        for name, source in sources.items():
            site = assembly.norm_site(seen.scene.bound, f"{stack}.{name}")
            if site is not None and source is not None and prefix + name in seen.sites:
                yield prefix + name, None, site, source, norms.get(prefix + name)
