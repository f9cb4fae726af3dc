"""Why a candidate differs: the fewest manifest edits that bring it back within tolerance, each tried on the numbers.

Edits are proposed by the candidate's own operators and by what its numbers say; one counts only where the reference,
run with it on the candidate's own inputs, agrees with the candidate at every site of the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from blockaudit.records.conformance import Diagnosis, SiteResult
from blockaudit.records.layers import ranges
from blockaudit.reference import assembly
from blockaudit.reference.assembly import Block, UnresolvedError
from blockaudit.reference.norms import NormError
from blockaudit.trace.edits import Edit, together
from blockaudit.trace.run import Pass
from blockaudit.trace.scene import Seen

# An edit that removes less of the error than this is no part of an explanation.
_LEAST = 0.02
RULES = {
    "epsilon": "epsilon-mismatch", "epsilon_location": "norm-formula-mismatch", "family": "norm-family-mismatch",
    "variance_correction": "norm-formula-mismatch", "center": "norm-family-mismatch", "scale": "norm-family-mismatch",
    "scale_offset": "scale-offset-mismatch", "work_dtype": "norm-work-dtype-mismatch",
    "cast_order": "norm-work-dtype-mismatch", "placement": "placement-mismatch", "module": "norm-shared",
    "parallel": "parallel-sequential-mismatch", "branch_order": "call-order-mismatch", "reads": "branch-input-mismatch",
    "shortcut_scale": "residual-scale-mismatch", "attention_branch_scale": "branch-scale-mismatch",
    "cross_attention_branch_scale": "branch-scale-mismatch", "mlp_branch_scale": "branch-scale-mismatch",
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
    """Explains layers as they are seen. `propose` gives the edits of one layer, likeliest first."""

    work: Pass
    propose: Callable[[Seen], Sequence[Edit]]
    found: list[Found] = field(default_factory=list[Found])
    unexplained: list[int | None] = field(default_factory=list["int | None"])
    missing: list[str] = field(default_factory=list[str])
    unexpected: list[str] = field(default_factory=list[str])
    _groups: count[int] = field(default_factory=lambda: count(1))

    def layer(self, seen: Seen) -> None:
        """Look at one layer: nothing to do where every site of it agrees."""
        block, layer = seen.block, seen.segment.layer
        if block is None or layer is None or seen.enter is None:
            return
        prefix = self.work.prefix(layer.stack) + f"layers.{layer.number}."
        declared = assembly.names(block)
        gone = [prefix + s for s in declared if s not in seen.sites]
        new = [prefix + s for s in seen.sites if s not in declared]
        self.missing += gone
        self.unexpected += new
        failing = {r.site: r for r in seen.results if r.mode == "local" and r.passed is False}
        if not failing and not gone and not new:
            return
        self._explain(seen, block, layer.number, prefix, failing, [*gone, *new])

    def _explain(
        self, seen: Seen, block: Block, number: int, prefix: str, failing: dict[str, SiteResult], odd: Sequence[str]
    ) -> None:
        before = sum(_error(r) for r in failing.values()) + len(odd)

        def remains(edits: list[Edit]) -> tuple[float, bool]:
            """(the part of the error that is left, whether nothing fails) with these edits."""
            plan = together(edits)(block)
            try:
                results = self.work.edited(seen, plan)
            except (UnresolvedError, NormError, RuntimeError, KeyError, StopIteration):
                return 1.0, False
            names = assembly.names(plan)
            strange = {prefix + s for s in names if s not in seen.sites} | {
                prefix + s for s in seen.sites if s not in names
            }
            bad = [r for r in results if r.passed is False]
            after = sum(_error(r) for r in results if r.site in failing or r in bad) + len(strange)
            return (after / before if before else 0.0), not bad and not strange

        edits = list(self.propose(seen))
        tried = sorted(((*remains([e]), e) for e in edits), key=lambda t: (not t[1], t[0]))
        whole = [(left, e) for left, done, e in tried if done]
        if whole:
            self.found += [Found(e, number, 1 - left, next(self._groups)) for left, e in whole]
            return
        chosen = self._combined([e for _, _, e in tried], remains)
        if chosen is not None:
            group, lefts = next(self._groups), {id(e): left for left, _, e in tried}
            self.found += [Found(e, number, 1 - min(1.0, lefts[id(e)]), group) for e in chosen]
            return
        self.unexplained.append(number)
        partial = [(left, e) for left, _, e in tried if left < 1 - _LEAST]
        self.found += [Found(e, number, 1 - left, 0) for left, e in partial[:3]]

    @staticmethod
    def _combined(edits: list[Edit], remains: Callable[[list[Edit]], tuple[float, bool]]) -> list[Edit] | None:
        """The fewest of several edits that explain all together; None where all of them do not."""
        chosen: list[Edit] = []
        for edit in edits:
            chosen.append(edit)
            if len(chosen) > 1 and remains(chosen)[1]:
                break
        else:
            return None
        for edit in list(chosen):
            rest = [e for e in chosen if e is not edit]
            if len(rest) > 0 and remains(rest)[1]:
                chosen = rest
        return chosen

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
            )  # fmt: skip
        )
    return sorted(made, key=lambda d: (d.group == 0, -round(d.explains, 3), d.group))


def rule_of(edit: Edit) -> str:
    """The rule that an edit falls under."""
    last = edit.field.rpartition(".")[2]
    if last == "present":
        return ("final-norm-" if ".final_norm." in edit.field else "norm-") + (
            "unexpected" if edit.value else "missing"
        )
    if last == "bias":
        return "norm-bias-unexpected" if edit.value else "norm-bias-missing"
    if last == "scale" and not edit.field.endswith("norm.scale"):
        place = edit.field.rpartition(".")[0]
        return {"logits": "logit-scale-mismatch"}.get(
            place, "embedding-scale-mismatch" if place.endswith("embedding") else RULES["scale"]
        )
    return RULES.get(last, "")


def _error(result: SiteResult) -> float:
    if result.difference.non_finite:
        return 1.0
    return min(1.0, max(result.difference.rms_rel, result.difference.row_rel, result.difference.bits or 0.0))
