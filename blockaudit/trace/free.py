"""Free runs: the reference on its own state from the embedding on, in float32 and in the dtype judged."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from blockaudit.records.conformance import Mode
from blockaudit.reference import assembly
from blockaudit.reference.assembly import Block, NormSite
from blockaudit.trace.candidate import Segment, Sites
from blockaudit.trace.judge import Expected, Judge
from blockaudit.trace.program import Layer
from blockaudit.trace.reference import Reference
from blockaudit.trace.scene import Scene, ordered


@dataclass
class Chain:
    """A reference state that runs through the stacks. `rows` of the batch, from the first; None: all."""

    scene: Scene
    reference: Reference
    rounded: bool
    rows: int | None
    states: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    ends: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def norm(self, site: NormSite, x: Tensor) -> Tensor:
        weight = self.scene.weight(self.reference.dtype)
        return (assembly.rounded(weight) if self.rounded else assembly.exact(weight))(site, x)

    def begin(self, stack: str, given: Tensor | None) -> Tensor | None:
        """The embedded tokens of a stack; `given`, the candidate's, where the reference has no embedding of its own."""
        own = self.reference.embed(stack)
        state = given[: self.rows].to(self.reference.dtype) if own is None and given is not None else own
        if state is not None:
            self.states[stack] = state
        return state

    def enter(self, stack: str) -> None:
        """From the embedding to the state that the first layer reads."""
        self.states[stack] = self.reference.enter(stack, self.states[stack])

    def step(self, at: Layer, block: Block) -> dict[str, Tensor]:
        """One layer: its sites; the state moves on."""
        made = assembly.layer(block, self.states[at.stack], self.reference.branch(at, self.ends), self.norm)
        self.states[at.stack] = made["state"]
        return made

    def end(self, stack: str) -> None:
        """What the stack gives: the state as it stands now."""
        if stack in self.states:
            self.ends[stack] = self.states[stack]


@dataclass
class Free:
    """The chains of one batch: the first is compared with, the second tells its noise."""

    scene: Scene
    chains: list[Chain]
    # Rows that went to other experts in some layer, and what attends to them: no longer the same computation.
    strayed: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def layer(
        self,
        judge: Judge,
        segment: Segment,
        at: Layer,
        block: Block,
        sites: Sites,
        modes: frozenset[Mode],
        judged: bool,
    ) -> None:
        """The reference's own layer, on its own state; and the candidate's on the reference's state."""
        scene, main = self.scene, self.chains[0]
        entered = main.states[at.stack]
        free_routes = {b.name: scene.run.routes(at, b.name) for b in block.branches}
        made = [chain.step(at, block) for chain in self.chains]
        ours = {b.name: self._routes(at, block, b.name, made[0], entered) for b in block.branches}
        self.stray(at.stack, free_routes, ours)
        if not judged:
            return
        if "layer" in modes:
            again = scene.run.rerun(segment, entered, main.ends)
            strayed = strayed_rows({b.name: scene.run.routes(at, b.name) for b in block.branches}, ours)
            self._compare(judge, "layer", at, block, again, made, strayed)
        if "end-to-end" in modes:
            self._compare(judge, "end-to-end", at, block, sites, made, self.strayed.get(at.stack))

    def _compare(
        self, judge: Judge, mode: Mode, at: Layer, block: Block, seen: Sites, made: list[dict[str, Tensor]],
        strayed: Tensor | None,
    ) -> None:  # fmt: skip
        scene = self.scene
        prefix = scene.prefix(at.stack) + f"layers.{at.number}."
        valid = counted(scene.valid(at.stack), strayed)
        noisy = made[1] if len(made) > 1 else {}
        for site, own in ordered(block, made[0]):
            if site not in seen:
                continue
            if site.endswith(".branch") and not scene.main.full:
                judge.nothing(prefix + site, mode, seen[site])
            else:
                judge.add(prefix + site, mode, seen[site], Expected(own, noisy.get(site)), valid=valid)

    def _routes(self, at: Layer, block: Block, name: str, made: dict[str, Tensor], entered: Tensor) -> Tensor | None:
        if self.scene.run.routes(at, name) is None:
            return None
        inside = assembly.read_by(block, block.branch(name), made, entered)
        return None if inside is None else self.chains[0].reference.routes(at, name, inside)

    def stray(self, stack: str, theirs: dict[str, Tensor | None], ours: dict[str, Tensor | None]) -> None:
        """Note the rows that the two send to other experts in a layer."""
        found = strayed_rows(theirs, ours)
        if found is None:
            return
        # Later tokens attend to a row that strayed (in an encoder all do, and this is the least of it).
        found = found.int().cummax(-1).values.bool()
        before = self.strayed.get(stack)
        self.strayed[stack] = found if before is None else found | before


def counted(valid: Tensor | None, strayed: Tensor | None) -> Tensor | None:
    """Rows that count: valid ones that did not stray."""
    if strayed is None or not bool(strayed.any()):
        return valid
    return ~strayed if valid is None else valid & ~strayed


def strayed_rows(theirs: dict[str, Tensor | None], ours: dict[str, Tensor | None]) -> Tensor | None:
    """Rows [B, S] that the two send to other experts."""
    found: Tensor | None = None
    for name, a in theirs.items():
        b = ours.get(name)
        if a is None or b is None or a.shape != b.shape:
            continue
        other = (a != b).any(-1)
        found = other if found is None else found | other
    return found
