"""Why a candidate differs: the fewest manifest edits that bring it back within tolerance, each tried on the numbers.

Edits are proposed by the candidate's own operators, by what its numbers say, and inside branches by trying; one counts
only where the reference, run with it on the candidate's own inputs, agrees with the candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from blockaudit.records.conformance import Diagnosis, SiteResult
from blockaudit.records.layers import ranges
from blockaudit.reference.assembly import UnresolvedError
from blockaudit.reference.norms import NormError
from blockaudit.trace.candidate import Candidate
from blockaudit.trace.edits import Edit, proposed, solved_edits
from blockaudit.trace.edits_inside import inside, whole_layers
from blockaudit.trace.edits_outer import outer_edits
from blockaudit.trace.held import Held
from blockaudit.trace.identify.solved import Solved
from blockaudit.trace.run import Pass
from blockaudit.trace.scene import Seen
from blockaudit.trace.trial import Trial

# An edit that removes less of the error than this is no part of an explanation.
_LEAST = 0.02
RULES = {
    "epsilon": "epsilon-mismatch", "epsilon_location": "norm-formula-mismatch", "family": "norm-family-mismatch",
    "variance_correction": "norm-formula-mismatch", "center": "norm-formula-mismatch",
    "scale": "norm-formula-mismatch", "scale_offset": "scale-offset-mismatch",
    "work_dtype": "norm-work-dtype-mismatch", "cast_order": "norm-work-dtype-mismatch",
    "placement": "placement-mismatch", "module": "norm-shared", "parallel": "parallel-sequential-mismatch",
    "branch_order": "call-order-mismatch", "reads": "branch-input-mismatch", "kind": "causal-leak",
    "shortcut_scale": "residual-scale-mismatch", "shortcut_source": "residual-source-mismatch",
    "attention_branch_scale": "branch-scale-mismatch", "cross_attention_branch_scale": "branch-scale-mismatch",
    "mlp_branch_scale": "branch-scale-mismatch", "softcap": "logit-scale-mismatch", "weights": "call-order-mismatch",
    "applied": "final-norm-unexpected", "active": "dropout-active-in-eval",
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """One edit of one layer (None: of what lies between layers), and the part of the error that it removes."""

    edit: Edit
    layer: int | None
    explains: float
    group: int


@dataclass(frozen=True)
class Left:
    """What is left under some edits: sites that fail or are odd, and the part of the error."""

    bad: frozenset[str]
    error: float

    def better(self, than: Left) -> bool:
        return len(self.bad) < len(than.bad) or (
            len(self.bad) == len(than.bad) and self.error < than.error * (1 - _LEAST)
        )


@dataclass
class Diagnoser:
    """Explains layers as they are seen.

    held: the candidate's parameters, where its operators are known. solved: what the numbers say. known: what explained
    the candidate in another dtype, which is tried first.
    """

    work: Pass
    held: Held | None = None
    solved: dict[tuple[str, int | None], list[Solved]] = field(
        default_factory=dict["tuple[str, int | None]", "list[Solved]"]
    )
    known: Sequence[Found] = ()
    recorded: bool = False  # what a trace does not hold is no fault of what was recorded
    found: list[Found] = field(default_factory=list[Found])
    unexplained: list[int | None] = field(default_factory=list["int | None"])
    missing: list[str] = field(default_factory=list[str])
    unexpected: list[str] = field(default_factory=list[str])
    _groups: count[int] = field(default_factory=lambda: count(1))
    _done: dict[str, frozenset[str]] = field(default_factory=dict[str, "frozenset[str]"])

    def layer(self, seen: Seen) -> None:
        """Look at one layer, or at what lies between: nothing to do where every site of it agrees."""
        at = seen.segment.layer
        if at is not None and seen.block is None:
            return
        if at is not None and self.work.layers is not None and at.number not in self.work.layers:
            return
        trial = Trial(self.work, seen)
        declared, given = trial.declared(), trial.sites()
        gone = [s for s in declared if s not in given]
        new = sorted(s for s in given if s not in declared and s != "logits")
        self.missing += gone
        self.unexpected += new
        failing = {r.site: r for r in seen.results if r.mode == "local" and r.passed is False}
        if at is not None and seen.enter is None:
            return
        # That a recorded trace does not show a site is nothing to explain.
        odd = frozenset((*failing, *new, *(() if self.work.candidate.recorded else gone)))
        place = f"{at.stack}.{at.number}" if at is not None else ", ".join(sorted(given))
        if not odd or odd <= self._done.get(place, frozenset()):
            return
        self._done[place] = odd | self._done.get(place, frozenset())
        _Search(self, trial, failing, odd).explain()

    def settle(self) -> list[Diagnosis]:
        """Edits of all layers, one for each run of layers that shares it, best first."""
        return merged(self.found)


class _Search:
    """The search for the edits of one layer, or of what lies between two."""

    def __init__(self, of: Diagnoser, trial: Trial, failing: dict[str, SiteResult], odd: frozenset[str]) -> None:
        self.of, self.trial, self.failing, self.odd = of, trial, failing, odd
        layer = trial.seen.segment.layer
        self.number = layer.number if layer is not None else None
        self.before = sum(_error(r) for r in failing.values()) + len(odd) - len(failing)
        self._tried: dict[tuple[str, ...], Left] = {}

    def explain(self) -> None:
        """Note what explains the sites that fail, or that nothing does."""
        single = next((e for e in self._singles() if not self.left([e]).bad), None)
        if single is not None:
            self._note([single], True)
            return
        chosen = self._branches(self._several())
        done = not self.left(chosen).bad
        chosen = self._pruned(chosen)
        if chosen:
            self._note(chosen, done)
        if not done:
            self.of.unexplained.append(self.number)

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
        hidden = declared - given if self.of.work.candidate.recorded else frozenset[str]()
        strange = (declared - given - hidden) | {s for s in given - declared if s != "logits"}
        bad = {r.site for r in results if r.passed is False}
        worst: dict[str, float] = {}
        for r in results:
            if r.site in self.failing or r.site in bad:
                worst[r.site] = max(worst.get(r.site, 0.0), _error(r))
        after = sum(worst.values()) + len(strange)
        return Left(frozenset(bad | strange), after / self.before if self.before else 0.0)

    def _note(self, edits: Sequence[Edit], whole: bool) -> None:
        group = next(self.of._groups)
        for edit in edits:
            share = 1 - min(1.0, self.left([edit]).error)
            self.of.found.append(Found(edit, self.number, share, group if whole or self._clears(edit) else 0))

    def _clears(self, edit: Edit) -> bool:
        """Whether an edit alone makes a site agree, and none fail."""
        return self.left([edit]).bad < self.odd

    # -- what is tried ----------------------------------------------------------------------------------------------

    def _graph(self) -> list[Edit]:
        """What the operators say."""
        seen = self.trial.seen
        if seen.block is None or seen.segment.layer is None:
            candidate = self.of.work.candidate
            own = candidate if isinstance(candidate, Candidate) else None
            work, scene = self.of.work, seen.scene
            return outer_edits(
                own, seen, self.of.held, self.of.solved, lambda b: work.scene(scene.run, scene.inputs, b).main
            )
        if self.of.held is None:
            return []
        return proposed(seen.block, seen.segment.layer, self.of.held, seen.scene.low)

    def _numbers(self) -> list[Edit]:
        """What the numbers say."""
        seen = self.trial.seen
        if seen.block is None or self.number is None:
            return []
        return list(solved_edits(seen.block, self.number, self.of.solved))

    def _known(self) -> list[Edit]:
        return [f.edit for f in self.of.known if f.layer == self.number and f.group]

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
            yield from whole_layers(seen, seen.block, None)
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
            yield from inside(seen, seen.block.branch(name), self.of.held)

    def _pruned(self, chosen: list[Edit]) -> list[Edit]:
        """Without those that change nothing."""
        for edit in list(chosen):
            rest = [e for e in chosen if e is not edit]
            now, without = self.left(chosen), self.left(rest) if rest else Left(self.odd, 1.0)
            if len(chosen) > 1 and not now.better(without):
                chosen = rest
        return chosen if self.left(chosen).better(Left(self.odd, 1.0)) else []


def merged(found: Iterable[Found]) -> list[Diagnosis]:
    """The same edit in several layers is one: its layers as ranges, what it explains at the least."""
    groups: dict[str, list[Found]] = {}
    for one in found:
        groups.setdefault(repr((one.edit.field, one.edit.declared, one.edit.value, one.group == 0)), []).append(one)
    made: list[Diagnosis] = []
    for rows in groups.values():
        first = rows[0]
        layers = [r.layer for r in rows if r.layer is not None]
        made.append(
            Diagnosis(
                first.edit.field,
                ranges(layers),
                first.edit.declared,
                first.edit.value,
                min(r.explains for r in rows),
                rule_of(first.edit),
                first.group,
            )
        )
    # Whole explanations first, in the order in which the layers run.
    return sorted(made, key=lambda d: (d.group == 0, d.group))


def rule_of(edit: Edit) -> str:
    """The rule that an edit falls under; none for what no contract field says."""
    place, _, last = edit.field.rpartition(".")
    if last == "present":
        if ".inner." in edit.field:
            return "qk-norm-mismatch"
        return ("final-norm-" if place.endswith(".final_norm") else "norm-") + (
            "unexpected" if edit.value else "missing"
        )
    if last == "bias":
        return "norm-bias-unexpected" if edit.value else "norm-bias-missing"
    if ".bias." in edit.field:
        return "branch-bias-unexpected" if edit.value else "branch-bias-missing"
    if last == "branch_order" and sorted(edit.declared) != sorted(edit.value):
        return "branch-count-mismatch"
    if last == "module" and "norm" not in place:
        return ""
    if last == "scale" and "norm" not in place and ".inner." not in place:
        return {"logits": "logit-scale-mismatch"}.get(
            place, "embedding-scale-mismatch" if place.endswith("embedding") else ""
        )
    return RULES.get(last, "")


def _error(result: SiteResult) -> float:
    if result.difference.non_finite:
        return 1.0
    return min(1.0, max(result.difference.rms_rel, result.difference.row_rel, result.difference.bits or 0.0))
