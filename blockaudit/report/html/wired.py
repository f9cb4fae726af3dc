"""The wiring as it is drawn: as declared, corrected by what was executed, with what is wrong in it marked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from blockaudit.records.conformance import Conformance
from blockaudit.records.contract import ContractRow
from blockaudit.records.report import Report
from blockaudit.records.sites import parse
from blockaudit.records.wiring import AddMark, BlockMark, BranchMark, NormMark, StackMark, Step, Wiring
from blockaudit.report.words import value

_OFFSET = " (1 + w)"
# What tells the branches of two kinds of layer apart: `decoder.mlp[moe]`.
_KIND = re.compile(r"\[[^\]]*\]")


def executed(wiring: Wiring, rows: Sequence[ContractRow]) -> Wiring | None:
    """The wiring with every field that the executed graph gives in place of the declared one; None without a graph."""
    said = {row.field: row for row in rows if (one := row.statements.get("executed")) is not None and one.known}
    if not said:
        return None
    return replace(wiring, stacks=tuple(_Executed(said).stack(stack) for stack in wiring.stacks))


def marked(report: Report, sites: Iterable[str]) -> frozenset[str]:
    """Those sites of a drawing at which something is wrong: a finding's, a disagreement's, the first divergence's."""
    errors = [f for f in report.findings if f.severity == "error"]
    wrong = {subject for f in errors for subject in (f.subject, *f.also)}
    wrong |= {row.field.rpartition(".")[0] for row in report.contract if row.agrees is False}
    first = "" if report.conformance is None else _first(report.conformance)
    return frozenset(site for site in sites if site in wrong or (first and _is_at(site, first)))


def _first(run: Conformance) -> str:
    """Where the first divergence is in a block: `mlp.norm_in` for `layers.7.mlp.norm_in`."""
    site = None if run.first is None else parse(run.first.site)
    if site is None:
        return ""
    return ".".join(part for part in (site.stack, site.branch, "" if site.site == "branch" else site.site) if part)


def _is_at(site: str, first: str) -> bool:
    """Whether a part of the drawing is where the first divergence is; a model with one stack does not name it there."""
    plain = _KIND.sub("", site)
    return first in (plain, plain.partition(".")[2])


class _Executed:
    """One reading of the executed statements; `rows` are those of the contract that have one."""

    def __init__(self, rows: Mapping[str, ContractRow]) -> None:
        self.rows = rows

    def _said(self, field: str) -> Any:
        row = self.rows.get(field)
        return None if row is None else row.value("executed")

    def _differs(self, field: str) -> bool:
        row = self.rows.get(field)
        return row is not None and row.agrees is False

    def stack(self, stack: StackMark) -> StackMark:
        def step(one: Step) -> Step | None:
            norm = self._norm(one.norm)
            return one if one.norm is None else None if norm is None else replace(one, norm=norm)

        return replace(
            stack,
            before=tuple(filter(None, map(step, stack.before))),
            blocks=tuple(self._block(block, stack.name) for block in stack.blocks),
            after=tuple(filter(None, map(step, stack.after))),
        )

    def _block(self, block: BlockMark, stack: str) -> BlockMark:
        return replace(block, adds=tuple(self._add(add, stack) for add in self._joined(block.adds, stack)))

    def _joined(self, adds: tuple[AddMark, ...], stack: str) -> tuple[AddMark, ...]:
        """Branches beside each other or after one another, and in the order, as they are executed."""
        if not adds:
            return adds
        if self._differs(f"{stack}.parallel"):
            branches = tuple(b for add in adds for b in add.branches)
            if self._said(f"{stack}.parallel") is True:
                return (replace(adds[0], branches=branches),)
            return tuple(replace(adds[0], branches=(b,), state="x" if not i else "h") for i, b in enumerate(branches))
        said = self._said(f"{stack}.branch_order")
        if not self._differs(f"{stack}.branch_order") or len(adds) < 2 or not isinstance(said, list | tuple):
            return adds
        order = list(map(str, cast("Sequence[object]", said)))
        ordered = sorted(adds, key=lambda add: _index(order, add.branches[0].kind))
        return tuple(replace(add, state=old.state) for add, old in zip(ordered, adds, strict=True))

    def _add(self, add: AddMark, stack: str) -> AddMark:
        carried = self._norm(add.carried)
        scale = f"{stack}.residual.shortcut_scale"
        post = add.norm_post or self._norm_at(f"{add.branches[-1].site}.norm_post")
        return replace(
            add,
            branches=tuple(self._branch(b, stack, add.carried is None) for b in add.branches),
            carried=carried,
            norm_post=self._norm(post),
            shortcut=_factor(self._said(scale)) if self._differs(scale) else add.shortcut,
        )

    def _branch(self, branch: BranchMark, stack: str, own: bool) -> BranchMark:
        kind = "attention" if "attention" in branch.kind else "mlp"
        name = "cross_attention" if branch.name == "cross_attention" else kind
        scale = f"{stack}.residual.{name}_branch_scale"
        norm_in = branch.norm_in or (self._norm_at(f"{branch.site}.norm_in") if own else None)
        return replace(
            branch,
            norm_in=self._norm(norm_in),
            norm_out=self._norm(branch.norm_out or self._norm_at(f"{branch.site}.norm_out")),
            inner=tuple(filter(None, map(self._norm, branch.inner))),
            factor=_factor(self._said(scale)) if self._differs(scale) else branch.factor,
        )

    def _norm_at(self, site: str) -> NormMark | None:
        """A norm that is executed where none is declared."""
        return NormMark("norm", site) if self._said(f"{site}.present") is True else None

    def _norm(self, norm: NormMark | None) -> NormMark | None:
        """The norm under its executed family and offset; None where it is not executed."""
        if norm is None or self._said(f"{norm.site}.present") is False:
            return None
        family, offset = self._said(f"{norm.site}.family"), self._said(f"{norm.site}.scale_offset")
        name, _, rest = norm.label.partition(" ")
        rest = f" {rest}" if rest else ""
        if offset is not None:
            rest = (_OFFSET if offset == 1 else "") + rest.replace(_OFFSET, "")
        return replace(norm, label=f"{family if isinstance(family, str) else name}{rest}")


def _index(order: Sequence[str], kind: str) -> int:
    return order.index(kind) if kind in order else len(order)


def _factor(said: Any) -> str:
    return "" if said == 1 else value(said)
