"""The search for the fewest edits that explain one layer, or what lies between layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from blockaudit.records.conformance import SiteResult
from blockaudit.reference.assembly import UnresolvedError
from blockaudit.reference.norms import NormError
from blockaudit.trace.candidate import Candidate
from blockaudit.trace.diagnosis.edits import Edit, proposed, solved_edits
from blockaudit.trace.diagnosis.edits_dropout import dropouts
from blockaudit.trace.diagnosis.edits_inside import inside, whole_layers
from blockaudit.trace.diagnosis.edits_outer import outer_edits
from blockaudit.trace.diagnosis.edits_sums import summed
from blockaudit.trace.diagnosis.held import Held
from blockaudit.trace.diagnosis.trial import Trial
from blockaudit.trace.identify.solved import Solved

# An edit that removes less of the error than this is no part of an explanation.
_LEAST = 0.02


@dataclass(frozen=True)
class Clues:
    """What edits are proposed by.

    held: the candidate's parameters, where its operators are known. solved: what the numbers say, by field and layer.
    known: edits that explained a layer in another dtype, which are tried first.
    """

    held: Held | None = None
    solved: dict[tuple[str, int | None], list[Solved]] = field(
        default_factory=dict["tuple[str, int | None]", "list[Solved]"]
    )
    known: Sequence[tuple[Edit, int | None]] = ()


@dataclass(frozen=True)
class Left:
    """What is left under some edits: sites that fail or are odd, and the part of the error."""

    bad: frozenset[str]
    error: float

    def better(self, than: Left) -> bool:
        return len(self.bad) < len(than.bad) or (
            len(self.bad) == len(than.bad) and self.error < than.error * (1 - _LEAST)
        )


class Search:
    """The search for the edits of one layer, or of what lies between two."""

    def __init__(self, trial: Trial, failing: dict[str, float], odd: frozenset[str], clues: Clues) -> None:
        """Failing: the error of each site that fails; odd: those, and sites that are missing or not expected."""
        self.trial, self.failing, self.odd, self.clues = trial, failing, odd, clues
        layer = trial.seen.segment.layer
        self.number = layer.number if layer is not None else None
        self.before = sum(failing.values()) + len(odd) - len(failing)
        self._tried: dict[tuple[str, ...], Left] = {}

    def explain(self) -> tuple[list[tuple[Edit, float]], bool]:
        """(edits with the part of the error that each removes alone, whether they explain everything)."""
        single = next((e for e in self._singles() if not self.left([e]).bad), None)
        if single is not None:
            return self._shares([single]), True
        chosen = self._branches(self._several())
        done = not self.left(chosen).bad
        chosen = sorted(self._pruned(chosen), key=self._place)
        # What makes no value agree, or another fail, is no explanation of anything.
        left = self.left(chosen).bad
        some = left < self.odd and bool(self.failing.keys() - left)
        return (self._shares(chosen) if done or some else []), done

    def left(self, edits: Sequence[Edit]) -> Left:
        key = tuple(sorted(e.key for e in edits))
        if key not in self._tried:
            self._tried[key] = self._left(edits)
        return self._tried[key]

    def _left(self, edits: Sequence[Edit]) -> Left:
        try:
            results, declared = self.trial.run(edits), set(self.trial.declared(edits))
        except (UnresolvedError, NormError, RuntimeError, KeyError, StopIteration, IndexError):
            return Left(self.odd | {"?"}, 2.0)
        given = self.trial.sites()
        hidden = declared - given if self.trial.work.candidate.recorded else frozenset[str]()
        strange = (declared - given - hidden) | {s for s in given - declared if s != "logits"}
        bad = {r.site for r in results if r.passed is False}
        worst: dict[str, float] = {}
        for r in results:
            if r.site in self.failing or r.site in bad:
                worst[r.site] = max(worst.get(r.site, 0.0), error_of(r))
        after = sum(worst.values()) + len(strange)
        return Left(frozenset(bad | strange), after / self.before if self.before else 0.0)

    def _shares(self, edits: Sequence[Edit]) -> list[tuple[Edit, float]]:
        return [(edit, 1 - min(1.0, self.left([edit]).error)) for edit in edits]

    def _place(self, edit: Edit) -> int:
        """Where in the order of execution an edit's branch stands."""
        block = self.trial.seen.block
        owners = [p.owner for p in block.branches] if block is not None else []
        return next((i for i, o in enumerate(owners) if edit.field.startswith(f"{o}.")), -1)

    # -- what is tried ----------------------------------------------------------------------------------------------

    def _graph(self) -> list[Edit]:
        """What the operators say."""
        seen = self.trial.seen
        if seen.block is None or seen.segment.layer is None:
            candidate = self.trial.work.candidate
            own = candidate if isinstance(candidate, Candidate) else None
            work, scene = self.trial.work, seen.scene
            return outer_edits(
                own, seen, self.clues.held, self.clues.solved, lambda b: work.scene(scene.run, scene.inputs, b).main
            )
        if self.clues.held is None:
            return []
        return proposed(seen.block, seen.segment.layer, self.clues.held, seen.scene.low)

    def _numbers(self) -> list[Edit]:
        """What the numbers say."""
        seen = self.trial.seen
        if seen.block is None or self.number is None:
            return []
        at = seen.segment.layer
        unread = at is not None and not at.steps
        factors = summed(seen.block, seen.sites, seen.enter) if unread and seen.enter is not None else ()
        return [*solved_edits(seen.block, self.number, self.clues.solved), *factors, *dropouts(seen)]

    def _known(self) -> list[Edit]:
        return [e for e, layer in self.clues.known if layer == self.number]

    def _proposals(self) -> list[Edit]:
        if not hasattr(self, "_edits"):
            every = [*self._known(), *self._graph(), *self._numbers()]
            self._edits = list({e.key: e for e in reversed(every)}.values())[::-1]
        return self._edits

    def _singles(self) -> Iterator[Edit]:
        """Edits that may explain everything alone."""
        yield from self._proposals()
        seen = self.trial.seen
        if seen.block is None:
            return
        failing = [s for s in self.failing if s.endswith(".branch")]
        norms = [n for p in seen.block.branches for n in p.norms.values() if n.weight is not None]
        if failing and (len(self.failing) > 1 or not norms):
            yield from whole_layers(seen, seen.block)
        if len(self.odd) == 1 and failing:
            yield from (b[0] for b in self._inside(failing[0]) if len(b) == 1)

    def _several(self) -> list[Edit]:
        """The proposals that work together: all of them, else the best of them one after the other."""
        every, nothing = self._proposals(), Left(self.odd, 1.0)
        if len(every) > 1 and not self.left(every).bad:
            return every
        chosen: list[Edit] = []
        best = nothing
        rest = list(every)
        while rest:
            step = min(rest, key=lambda e: (len(self.left([*chosen, e]).bad), self.left([*chosen, e]).error))
            if not self.left([*chosen, step]).better(best):
                break
            best = self.left([*chosen, step])
            chosen.append(step)
            rest.remove(step)
        if len(every) > 1 and self.left(every).better(best):
            return every
        return chosen

    def _branches(self, chosen: list[Edit]) -> list[Edit]:
        """With what explains each branch that still fails."""
        block = self.trial.seen.block
        for site in sorted(self.left(chosen).bad) if block is not None else ():
            if not site.endswith(".branch") or site not in self.failing:
                continue
            now = self.left(chosen).bad
            for bundle in self._inside(site):
                after = self.left([*chosen, *bundle]).bad
                if site not in after and after < now:
                    chosen = [*chosen, *bundle]
                    break
        return chosen

    def _inside(self, site: str) -> Iterator[tuple[Edit, ...]]:
        seen, name = self.trial.seen, site.removeprefix(self.trial.prefix).removesuffix(".branch")
        if seen.block is not None and seen.scene.main.full:
            yield from inside(seen, seen.block.branch(name), self.clues.held)

    def _pruned(self, chosen: list[Edit]) -> list[Edit]:
        """Without those that change nothing."""
        for edit in list(chosen):
            rest = [e for e in chosen if e is not edit]
            now, without = self.left(chosen), self.left(rest) if rest else Left(self.odd, 1.0)
            if len(chosen) > 1 and not now.better(without):
                chosen = rest
        return chosen if self.left(chosen).better(Left(self.odd, 1.0)) else []


def error_of(result: SiteResult) -> float:
    """The error of one site as a part of its value, at most 1."""
    if result.difference.non_finite:
        return 1.0
    return min(1.0, max(result.difference.rms_rel, result.difference.row_rel, result.difference.bits or 0.0))
