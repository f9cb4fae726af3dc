"""Which sites of a recorded layer can be held to their own inputs: those that were recorded, or are sums of such."""

from __future__ import annotations

from collections.abc import Collection

from blockaudit.reference.assembly import EARLIER, Block, BranchPlan, plain


class Known:
    """One layer. `recorded` are its sites, by `branch.site`.

    enter: whether the state that enters is known; shortcut: whether the first branch's own residual stands for it,
    which then is held to nothing itself.
    """

    def __init__(self, block: Block, recorded: Collection[str], enter: bool, shortcut: bool) -> None:
        self.block, self.recorded, self.enter, self.shortcut = block, recorded, enter, shortcut
        self.state = enter
        self.found: set[str] = set()

    def judged(self) -> set[str]:
        terms: list[bool] = []
        for i, part in enumerate(self.block.branches):
            inside = self._inside(i, part)
            if not terms:
                terms.append(self._residual(part, inside))
            terms.append(self._update(part, inside))
            if not self.block.parallel or i == len(self.block.branches) - 1:
                self._sum(part, all(terms))
                terms = []
        return self.found

    def _inside(self, i: int, part: BranchPlan) -> bool:
        """Whether what the branch function reads is known."""
        if i == 0 or self.block.parallel or part.reads == EARLIER:
            source = self.enter or self.shortcut
        else:
            source = self.state or (plain(self.block, part) and f"{part.name}.residual" in self.recorded)
        if "norm_in" in part.norms:
            return self._follows(f"{part.name}.norm_in", source)
        return source if part.reads in ("state", EARLIER) else part.reads in self.recorded

    def _residual(self, part: BranchPlan, inside: bool) -> bool:
        normalised = self.block.normalised_shortcut or part.normalised
        known = inside if normalised else self.state
        return self._follows(f"{part.name}.residual", known) or known

    def _update(self, part: BranchPlan, inside: bool) -> bool:
        core = self._follows(f"{part.name}.branch", inside)
        if "norm_out" in part.norms:
            core = self._follows(f"{part.name}.norm_out", core)
        return self._follows(f"{part.name}.update", core) or core

    def _sum(self, part: BranchPlan, terms: bool) -> None:
        total = self._follows(f"{part.name}.sum", terms) or terms
        after = self._follows(f"{part.name}.state", total)
        self._follows("state", total)
        self.state = after or (total and "norm_post" not in part.norms)

    def _follows(self, site: str, known: bool) -> bool:
        """Note a site whose input is known; whether its own value is."""
        if known:
            self.found.add(site)
        return site in self.recorded
