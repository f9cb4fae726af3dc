"""A candidate beside the reference on one batch, a layer at a time: the three modes of comparison.

`local` computes every site from the candidate's own inputs to it, so that nothing accumulates. `layer` feeds each layer
of the candidate the reference's state. `end-to-end` lets both run free. A layer's weights are in memory while it runs;
those of the next are read meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from blockaudit.records.bound import BoundManifest
from blockaudit.records.conformance import Mode, SiteResult
from blockaudit.reference import assembly
from blockaudit.reference.assembly import Block, BranchFunction, NormSite
from blockaudit.reference.norms import variants
from blockaudit.trace.candidate import Candidate, Run, Segment, Sites
from blockaudit.trace.judge import Expected, Judge
from blockaudit.trace.models import Inputs
from blockaudit.trace.program import Layer
from blockaudit.trace.reference import Reference
from blockaudit.trace.weights import Weights

NORMS = ("norm_in", "norm_out", "state", "embed_norm", "final_norm")
# Called with each layer's values once they were compared: identification, telemetry, a trace that is written.
Observer = Callable[["Seen"], None]


@dataclass(frozen=True)
class Seen:
    """One layer (or what lies between layers) as it was seen: the candidate's sites, and the run that made them."""

    run: Run
    segment: Segment
    block: Block | None
    sites: Sites  # by `branch.site`
    enter: Tensor | None
    valid: Tensor | None
    results: tuple[SiteResult, ...]


@dataclass
class Chain:
    """A reference state that runs free through the stacks, in one dtype and one rounding."""

    reference: Reference
    rounded: bool
    rows: int | None  # of the batch, from the first; None: all
    states: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    ends: dict[str, Tensor] = field(default_factory=dict[str, Tensor])


class Pass:
    """One candidate in one dtype, over batches."""

    def __init__(
        self,
        candidate: Candidate,
        bound: BoundManifest,
        weights: Weights,
        judge: Judge,
        modes: frozenset[Mode],
        make: Callable[[torch.dtype, Run], Reference],
        layers: range | None = None,
    ) -> None:
        self.candidate, self.bound, self.weights, self.judge = candidate, bound, weights, judge
        self.modes, self.make, self.layers = modes, make, layers
        self.dtype = candidate.model.dtype
        low = self.dtype != torch.float32
        # Truth for norms and sums, where it is cheap; for branches and free runs float32.
        self.wide = torch.float32 if low else torch.float64
        self.noise = self.dtype if low else torch.float64
        self.several = len(candidate.program.stacks) > 1

    def batch(self, inputs: Inputs, observe: Observer) -> None:
        """Run one batch, every site compared in every mode."""
        run = self.candidate.run(inputs)
        main = self.make(torch.float32, run)
        main.begin(inputs)
        noise = self.make(self.noise, run) if main.full else None
        some = {k: v[:1] for k, v in inputs.items()}
        if noise is not None:
            noise.begin(some)
        chains = [Chain(main, False, None)]
        if noise is not None:
            chains.append(Chain(noise, self.noise == self.dtype, 1))
        self._main, self._noise, self._inputs = main, noise, inputs
        for i, segment in enumerate(run.segments):
            if i + 1 < len(run.segments):
                self._prefetch(run, run.segments[i + 1])
            sites = run.advance(segment)
            if segment.layer is not None:
                self._layer(run, segment, segment.layer, sites, chains, observe)
            else:
                self._between(run, segment, sites, chains, observe)
            self.weights.release()

    # -- a layer ----------------------------------------------------------------------------------------------------

    def _layer(
        self, run: Run, segment: Segment, layer: Layer, sites: Sites, chains: list[Chain], observe: Observer
    ) -> None:
        block = assembly.block(self.bound, layer.stack, layer.number)
        prefix = self.prefix(layer.stack) + f"layers.{layer.number}."
        valid = self._valid(layer.stack)
        judged = self.layers is None or layer.number in self.layers
        enter = run.entering(segment)
        if judged and "local" in self.modes:
            self._local(self.judge, run, layer, block, sites, enter)
        if self.modes & {"layer", "end-to-end"}:
            self._free(run, segment, layer, block, prefix, sites, valid, chains, judged)
        results = tuple(self.judge.settle())
        observe(Seen(run, segment, block, sites, enter, valid, results))

    def edited(self, seen: Seen, block: Block) -> list[SiteResult]:
        """The local comparison of a layer that was seen, held to another block."""
        layer, enter = seen.segment.layer, seen.enter
        assert layer is not None and enter is not None
        judge = Judge(self.dtype, self.judge.policy)
        self._local(judge, seen.run, layer, block, seen.sites, enter)
        return judge.settle()

    def _local(self, judge: Judge, run: Run, layer: Layer, block: Block, sites: Sites, enter: Tensor) -> None:
        main, noise = self._main, self._noise
        prefix = self.prefix(layer.stack) + f"layers.{layer.number}."
        valid = self._valid(layer.stack)
        wide = {k: v.to(self.wide) for k, v in sites.items()}
        weight = self.weight(self.wide)
        branch = main.branch(layer, _some(run.outputs, None, main.dtype)) if main.full else None
        ours: BranchFunction | None = None
        if branch is not None:
            ours = lambda name, x: branch(name, x.float())  # noqa: E731 - named where it is used
        expected = assembly.local(block, wide, enter.to(self.wide), ours, assembly.exact(weight))
        noisy = self._noisy(run, layer, block, sites, enter)
        for site, value in _ordered(block, expected):
            if site not in sites:
                continue  # told of as a missing site
            name = site.rpartition(".")[2]
            spellings: tuple[Tensor, ...] = ()
            norm = _norm_at(block, site)
            if norm is not None:
                spellings = self._spellings(norm, block, site, sites, enter)
            against = None
            if name == "branch" and noise is not None:
                against = value
            judge.add(
                prefix + site, "local", sites[site], Expected(value, noisy.get(site), against, spellings),
                valid=valid, is_norm=norm is not None,
            )  # fmt: skip
        if branch is None:
            for site in sites:
                if site.endswith(".branch"):
                    judge.nothing(prefix + site, "local", sites[site])

    def _noisy(self, run: Run, layer: Layer, block: Block, sites: Sites, enter: Tensor) -> dict[str, Tensor]:
        """Every site of the layer in the dtype judged, on the candidate's own inputs; branches on the first rows."""
        noise = self._noise
        low = self.dtype != torch.float32
        norm = assembly.rounded(self.weight(self.dtype)) if low else assembly.exact(self.weight(self.dtype))
        found = assembly.local(block, sites, enter, None, norm)
        if noise is None:
            return found
        first = {k: v[:1].to(self.noise) for k, v in sites.items()}
        branch = noise.branch(layer, _some(run.outputs, 1, self.noise))
        for part in block.branches:
            inside = assembly.read_by(block, part, first, enter[:1].to(self.noise))
            if inside is not None:
                found[f"{part.name}.branch"] = branch(part.name, inside)
        return found

    def _spellings(self, norm: NormSite, block: Block, site: str, sites: Sites, enter: Tensor) -> tuple[Tensor, ...]:
        """The correct roundings of a norm of the candidate's own input; none in float32, whose bits say little."""
        if self.dtype == torch.float32:
            return ()
        source = assembly.source_of(block, site, sites, enter)
        if source is None:
            return ()
        w, b, state = norm.parameters(self.weight(self.dtype))
        return tuple(variants(norm.spec, source, w, b, state or None))

    def _free(
        self, run: Run, segment: Segment, layer: Layer, block: Block, prefix: str, sites: Sites,
        valid: Tensor | None, chains: list[Chain], judged: bool,
    ) -> None:  # fmt: skip
        """The reference's own layer, on its own state; and the candidate's on the reference's state."""
        entered = chains[0].states[layer.stack]
        made = [self._step(chain, layer, block) for chain in chains]
        value = made[0]
        noisy = made[1] if len(made) > 1 else {}
        if not judged:
            return
        compared: dict[Mode, Sites] = {"end-to-end": sites}
        if "layer" in self.modes:
            compared["layer"] = run.rerun(segment, entered, chains[0].ends)
        for mode, seen in compared.items():
            if mode not in self.modes:
                continue
            for site, own in _ordered(block, value):
                if site in seen and (chains[0].reference.full or not site.endswith(".branch")):
                    self.judge.add(prefix + site, mode, seen[site], Expected(own, noisy.get(site)), valid=valid)
                elif site in seen:
                    self.judge.nothing(prefix + site, mode, seen[site])

    def _step(self, chain: Chain, layer: Layer, block: Block) -> dict[str, Tensor]:
        reference = chain.reference
        weight = self.weight(reference.dtype)
        norm = assembly.rounded(weight) if chain.rounded else assembly.exact(weight)
        made = assembly.layer(block, chain.states[layer.stack], reference.branch(layer, chain.ends), norm)
        chain.states[layer.stack] = made["state"]
        return made

    # -- between layers ---------------------------------------------------------------------------------------------

    def _between(self, run: Run, segment: Segment, sites: Sites, chains: list[Chain], observe: Observer) -> None:
        for stack in self.candidate.program.stacks:
            prefix = self.prefix(stack.name)
            if prefix + "embed" in sites:
                self._begin(run, stack.name, prefix, sites, chains)
            if run.ends_in(segment, stack):
                self._end(run, stack.name, prefix, sites, chains)
        if "logits" in sites:
            self._head(run, sites, chains)
        results = tuple(self.judge.settle())
        observe(Seen(run, segment, None, sites, None, None, results))

    def _begin(self, run: Run, stack: str, prefix: str, sites: Sites, chains: list[Chain]) -> None:
        valid = self._valid(stack)
        site = assembly.norm_site(self.bound, f"{stack}.embed_norm")
        for chain in chains:
            own = chain.reference.embed(stack)
            state = sites[prefix + "embed"].to(chain.reference.dtype) if own is None else own
            chain.states[stack] = state[: chain.rows] if chain.rows else state
        embeds = [c.states[stack] for c in chains]
        if chains[0].reference.full:
            self._outer(prefix + "embed", sites, embeds, valid, "local", "end-to-end")
        else:
            self.judge.nothing(prefix + "embed", "local", sites[prefix + "embed"])
        if site is None:
            return
        for chain in chains:
            chain.states[stack] = self._norm(chain, site, chain.states[stack])
        if prefix + "embed_norm" in sites:
            self._local_norm(prefix + "embed_norm", site, sites[prefix + "embed"], sites, valid)
            self._outer(prefix + "embed_norm", sites, [c.states[stack] for c in chains], valid, "end-to-end")

    def _end(self, run: Run, stack: str, prefix: str, sites: Sites, chains: list[Chain]) -> None:
        site = assembly.norm_site(self.bound, f"{stack}.final_norm")
        valid = self._valid(stack)
        last = run.left(stack)
        if site is not None:
            for chain in chains:
                if stack in chain.states:
                    chain.states[stack] = self._norm(chain, site, chain.states[stack])
            if prefix + "final_norm" in sites and last is not None:
                self._local_norm(prefix + "final_norm", site, last, sites, valid)
                self._outer(
                    prefix + "final_norm", sites, [c.states[stack] for c in chains if stack in c.states], valid,
                    "end-to-end",
                )  # fmt: skip
        if last is not None:
            run.outputs[stack] = sites.get(prefix + "final_norm", last)
        for chain in chains:
            if stack in chain.states:
                chain.ends[stack] = chain.states[stack]

    def _head(self, run: Run, sites: Sites, chains: list[Chain]) -> None:
        stack = self.candidate.program.stacks[-1].name
        logits, last = sites["logits"], sites.get(self.prefix(stack) + "final_norm", run.left(stack))
        valid = self._valid(stack)
        main = chains[0].reference
        if not main.full or last is None:
            self.judge.nothing("logits", "local", logits)
            return
        own = main.head(last.to(main.dtype))
        if own is None or own.shape != logits.shape:
            self.judge.nothing("logits", "local", logits)
            return
        noisy = chains[1].reference.head(last[:1].to(chains[1].reference.dtype)) if len(chains) > 1 else None
        if "local" in self.modes:
            self.judge.add("logits", "local", logits, Expected(own, noisy), valid=valid)
        free = [c.reference.head(c.ends.get(stack, c.states[stack])) for c in chains]
        if "end-to-end" in self.modes and free[0] is not None:
            noise = free[1] if len(free) > 1 else None
            self.judge.add("logits", "end-to-end", logits, Expected(free[0], noise), valid=valid)

    def _outer(self, site: str, sites: Sites, values: list[Tensor], valid: Tensor | None, *modes: Mode) -> None:
        for mode in modes:
            if mode in self.modes and site in sites:
                noisy = values[1] if len(values) > 1 else None
                self.judge.add(site, mode, sites[site], Expected(values[0], noisy), valid=valid)

    def _local_norm(self, name: str, site: NormSite, source: Tensor, sites: Sites, valid: Tensor | None) -> None:
        if "local" not in self.modes:
            return
        value = assembly.exact(self.weight(self.wide))(site, source.to(self.wide))
        weight = self.weight(self.dtype)
        low = self.dtype != torch.float32
        noisy = (assembly.rounded(weight) if low else assembly.exact(weight))(site, source)
        w, b, state = site.parameters(weight)
        spellings = tuple(variants(site.spec, source, w, b, state or None)) if low else ()
        self.judge.add(name, "local", sites[name], Expected(value, noisy, None, spellings), valid=valid, is_norm=True)

    def _norm(self, chain: Chain, site: NormSite, x: Tensor) -> Tensor:
        weight = self.weight(chain.reference.dtype)
        return (assembly.rounded(weight) if chain.rounded else assembly.exact(weight))(site, x)

    # -- small things -----------------------------------------------------------------------------------------------

    def weight(self, dtype: torch.dtype) -> Callable[[str], Tensor]:
        """Weights as the candidate's dtype holds them, widened: rounding them is not an error of the candidate."""
        return lambda key: self.weights.tensor(key, self.dtype).to(dtype)

    def prefix(self, stack: str) -> str:
        """What the names of a stack's sites begin with."""
        return f"{stack}." if self.several else ""

    def _valid(self, stack: str) -> Tensor | None:
        """Rows that count: those of no padding."""
        mask = self._inputs.get("attention_mask")
        if mask is None or (self.several and stack == "decoder"):
            return None
        return mask.to(self.candidate.device).bool()

    def _prefetch(self, run: Run, segment: Segment) -> None:
        names = run.engine.weights_in(segment.begin, segment.end)
        self.weights.prefetch(k for n in names if (k := self.candidate.model.key(n)) is not None)


def _some(states: Mapping[str, Tensor], rows: int | None, dtype: torch.dtype) -> dict[str, Tensor]:
    return {k: v[:rows].to(dtype) for k, v in states.items()}


def _ordered(block: Block, values: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Sites of a layer in the order in which they are executed."""
    from blockaudit.records.sites import order

    names = [b.name for b in block.branches]
    return sorted(values.items(), key=lambda item: order(f"layers.0.{item[0]}", names))


def _norm_at(block: Block, site: str) -> NormSite | None:
    """The norm whose output a site of a layer is."""
    branch, _, name = site.rpartition(".")
    if not branch or name not in ("norm_in", "norm_out", "state"):
        return None
    return block.branch(branch).norms.get("norm_post" if name == "state" else name)
