"""Why a candidate differs: the fewest manifest edits that bring it back within tolerance, each tried on the numbers.

Edits are proposed by the candidate's own operators, by what its numbers say, and inside branches by trying; one counts
only where the reference, run with it on the candidate's own inputs, agrees with the candidate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from blockaudit.records.conformance import Diagnosis
from blockaudit.records.layers import ranges
from blockaudit.trace.diagnosis.edits import Edit
from blockaudit.trace.diagnosis.search import Clues, Search, error_of
from blockaudit.trace.diagnosis.trial import Trial
from blockaudit.trace.run import Pass
from blockaudit.trace.scene import Seen

RULES = {
    "epsilon": "epsilon-mismatch", "epsilon_location": "norm-formula-mismatch", "family": "norm-family-mismatch",
    "variance_correction": "norm-formula-mismatch", "center": "norm-formula-mismatch",
    "scale": "norm-axes-mismatch", "scale_offset": "scale-offset-mismatch",
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


@dataclass
class Diagnoser:
    """Explains layers as they are seen. clues: what edits are proposed by."""

    work: Pass
    clues: Clues = field(default_factory=Clues)
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
        failing: dict[str, float] = {}
        for r in seen.results:
            if r.mode == "local" and r.passed is False:
                failing[r.site] = max(failing.get(r.site, 0.0), error_of(r))
        if at is not None and seen.enter is None:
            return
        # That a recorded trace does not show a site is nothing to explain.
        odd = frozenset((*failing, *new, *(() if self.work.candidate.recorded else gone)))
        place = f"{at.stack}.{at.number}" if at is not None else ", ".join(sorted(given))
        if not odd or odd <= self._done.get(place, frozenset()):
            return
        self._done[place] = odd | self._done.get(place, frozenset())
        edits, whole = Search(trial, failing, odd, self.clues).explain()
        group, number = next(self._groups), at.number if at is not None else None
        self.found += [Found(edit, number, share, group) for edit, share in edits]
        self.unexplained += [] if whole else [number]

    def settle(self) -> list[Diagnosis]:
        """Edits of all layers, one for each run of layers that shares it, best first."""
        return merged(self.found)


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
