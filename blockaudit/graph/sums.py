"""Residual sums. The shortcut of a sum is the term that every other term is computed from; the others are updates."""

from __future__ import annotations

from torch.fx import Node

from blockaudit.graph import replaced
from blockaudit.graph.flow import op, operand, peel, shape
from blockaudit.graph.values import SUMS, Values, times

Split = tuple[Node, float | None, list[tuple[Node, float | None]]]
_FAR = 4  # the most adds that a branch spans


class Sums(Values):
    """Finds the sums of a stream."""

    def _sum(self, node: Node) -> Split | None:
        """The same of a sum that is multiplied as a whole: the factor is then one of every term."""
        split = self._split(node)
        if split is not None:
            return split
        core, factor = self._scaled(node)
        split = self._split(core) if core is not node else None
        if split is None:
            return None
        shortcut, own, terms = split
        return shortcut, times(own, factor), [(t, times(f, factor)) for t, f in terms]

    def _replacement(self, node: Node) -> Split | None:
        """The same of a branch whose output takes the place of the state: the shortcut's factor is zero."""
        state = replaced.state(self.graph, node, lambda n: self._sum(n) is not None, self.norm)
        return None if state is None else (state, 0.0, [(node, 1.0)])

    def _merged(self, state: Node, factor: float | None, terms: list[tuple[Node, float]]) -> Split:
        """(shortcut, its factor, updates), where the state that is in a term once more is the shortcut's."""
        updates: list[tuple[Node, float | None]] = []
        for term, own in terms:
            node = peel(term)
            left, right = (operand(node, 0), operand(node, 1)) if op(node) in SUMS and not node.kwargs else (None, None)
            again = [p for p in (left, right) if p is not None and peel(p) is state]
            other = [p for p in (left, right) if p is not None and peel(p) is not state]
            if len(again) == 1 and len(other) == 1 and self.graph.precedes(state, other[0]):
                factor = None if factor is None else factor + own
                node = peel(other[0])
            updates.append((node, own))
        return state, factor, updates

    def _split(self, node: Node) -> Split | None:
        """(shortcut, its factor, [(update, its factor)]) where `node` is a residual sum."""
        if op(node) not in SUMS or len(shape(node)) < 2:
            return None
        terms = self._terms(node)
        if len(terms) < 2:
            return None  # a number that is added is no update
        for scaled in (False, True):
            # A shortcut that is read as it stands has no factor; one that is multiplied first is found behind it.
            for i, (term, factor) in enumerate(terms):
                core, own = self._scaled(peel(term)) if scaled else (peel(term), 1.0)
                others = [t for j, t in enumerate(terms) if j != i]
                if self._is_state(core, node) and all(self.graph.precedes(core, t) for t, _ in others):
                    return self._merged(core, times(own, factor), others)
        return self._late(node)

    def _is_state(self, core: Node, total: Node) -> bool:
        """Whether a term can be a shortcut: what depends on the tokens, or learned rows (latents) in their place."""
        return self.graph.is_data(core) or (len(shape(core)) > 2 and shape(core) == shape(total))

    def _late(self, node: Node) -> Split | None:
        """The same of a branch that left the stream some adds before: its term comes from an earlier shortcut."""
        alpha = node.kwargs.get("alpha", 1)
        left, right = operand(node, 0), operand(node, 1)
        if left is None or right is None or alpha != 1 or not self._inner_sum(node):
            return None
        for shortcut, term in ((peel(left), peel(right)), (peel(right), peel(left))):
            if op(shortcut) in SUMS and op(term) not in SUMS and self._origin(shortcut, term) is not None:
                return shortcut, 1.0, [(term, 1.0)]
        return None

    def _origin(self, shortcut: Node, term: Node) -> Node | None:
        """The nearest state, going back through shortcuts, that a term is computed from."""
        for _ in range(_FAR):
            if self.graph.precedes(shortcut, term):
                return shortcut
            split = self._split(self._bare(shortcut)) if op(self._bare(shortcut)) in SUMS else None
            if split is None:
                return None
            shortcut = split[0]
        return None

    def _opened(self, shortcut: Node, term: Node, factor: float | None) -> list[tuple[Node, float | None]]:
        """The updates of one term: two, where branches are summed before they join the stream."""
        inner, own = self._scaled(peel(term))
        if op(inner) in SUMS and self._inner_sum(inner):
            factor = times(factor, own)
            alpha = inner.kwargs.get("alpha", 1)
            factors = (factor, times(factor, float(alpha) if isinstance(alpha, int | float) else None))
            parts = [peel(a) for a in inner.all_input_nodes[:2]]
            apart = not (self.graph.precedes(parts[0], parts[1]) or self.graph.precedes(parts[1], parts[0]))
            if apart and all(self.graph.precedes(shortcut, p) for p in parts):
                return [u for p, f in zip(parts, factors, strict=False) for u in self._opened(shortcut, p, f)]
        return [(peel(term), factor)]

    def _terms(self, node: Node) -> list[tuple[Node, float]]:
        """The terms of a sum, opened only as far as one of them is what all others come from."""
        left, right = operand(node, 0), operand(node, 1)
        if left is None or right is None:
            return [(node, 1.0)]
        alpha = node.kwargs.get("alpha", 1)
        terms = [(left, 1.0), (right, float(alpha) if isinstance(alpha, int | float) else 1.0)]
        cores = [self._scaled(peel(t))[0] for t, _ in terms]
        if self.graph.precedes(cores[0], cores[1]) or self.graph.precedes(cores[1], cores[0]):
            return terms
        opened: list[tuple[Node, float]] = []
        for term, factor in terms:
            inner = peel(term)
            if op(inner) in SUMS and shape(inner) == shape(node) and self._inner_sum(inner):
                opened += [(t, f * factor) for t, f in self._terms(inner)]
            else:
                opened.append((term, factor))
        return opened

    def _inner_sum(self, node: Node) -> bool:
        """Whether a term is itself a plain sum of two values of the state's shape (not a bias added to a product)."""
        parts = operand(node, 0), operand(node, 1)
        return all(p is not None and self.graph.is_data(p) and shape(p) == shape(node) for p in parts)
