"""Reads a residual stream backwards from the value that leaves a stack: sums, norms, and where it begins."""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Node

from blockaudit.graph import doubts
from blockaudit.graph.branches import Branches, softcap
from blockaudit.graph.flow import op, operand, peel, shape
from blockaudit.graph.linear import is_head
from blockaudit.graph.norms import Norm
from blockaudit.graph.stream import Add, Stream
from blockaudit.graph.values import PRODUCTS, SUMS, times


class Reader(Branches):
    """Reads streams out of one recording."""

    def stream(self, end: Node) -> Stream:
        """The stack that ends at `end`."""
        final, current = self._final(self._bare(end))
        width = shape(current)[-1:]
        adds: list[Add] = []
        while True:
            current = self._bare(current)
            post, total = None, current
            split = self._sum(current)
            if split is None:
                post = self.norm(current) or self._affine(current)
                if post is not None and shape(post.source)[-1:] == width:
                    total = self._bare(post.source)
                    split = self._sum(total)
            if split is None:
                post, total, split = None, current, self._replacement(current)
            if split is None:
                break
            shortcut, factor, terms = split
            adds.append(Add(total, shortcut, factor, self._branches(shortcut, terms), post))
            current = shortcut
        embed = self._embed_norm(current)
        start = peel(embed.source) if embed is not None else current
        adds.reverse()
        if final is None:
            adds, final = _unlike(adds)
        earlier = self.norm(start) if embed is not None else None
        if earlier is not None and embed is not None and all(a.norm_post for a in adds) and final is None:
            # Two norms before the first add: the second is the first branch's, and so on down to a final norm.
            adds, final = _shifted(adds, embed)
            start = peel(earlier.source)
            scale = self._token_scale(start)
            return Stream(tuple(adds), final, earlier, start, scale, True, self._doubts(adds, start))
        return Stream(tuple(adds), final, embed, start, self._token_scale(start), unread=self._doubts(adds, start))

    def rooted(self, add: Add, state: Node) -> Add:
        """The same add as one of `state`, of which its shortcut is the normalised value."""
        branches = tuple(self._branch(state, b.update, b.factor) for b in add.branches)
        return replace(add, shortcut=state, branches=branches, used=add.shortcut)

    def _doubts(self, adds: list[Add], start: Node) -> tuple[str, ...]:
        if not adds:
            return (f"{start.name}: no residual add that replay confirms",)
        of_adds = [d for a in adds for d in doubts.of_add(self.graph, self.recording.constants, a)]
        return (*of_adds, *doubts.of_start(self.graph, start))

    def _token_scale(self, start: Node) -> float | None:
        """The factor on the token embedding, also where positions are added to it afterwards."""
        core, factor = self._scaled(start)
        if op(core) == "index_put" and operand(core) is not None:
            # A few tokens have rows of their own.
            return times(factor, self._token_scale(peel(core.all_input_nodes[0])))
        if op(core) in SUMS:
            parts = [self._token_scale(peel(a)) for a in core.all_input_nodes if self.graph.is_data(a)]
            return times(factor, next((p for p in parts if p is not None), None))
        if op(core) in PRODUCTS:
            return times(factor, self._token_scale(self._data(core)))  # a factorised embedding
        indices = operand(core, 1)
        tokens = op(core) == "embedding" and indices is not None and peel(indices).op == "placeholder"
        return factor if tokens else None

    def _embed_norm(self, entry: Node) -> Norm | None:
        """The norm of the embedded input: the first add reads it, as it stands, projected, masked or with positions."""
        while True:
            entry = self._bare(entry)
            norm = self.norm(entry)
            if norm is not None:
                return norm
            if op(entry) in PRODUCTS:
                entry = self._data(entry)  # a factorised embedding is widened after its norm
                continue
            if op(entry) in SUMS:
                # Positions that are added after the norm; what is normalised behind any other sum is no embedding.
                parts = [a for a in entry.all_input_nodes if self.graph.is_data(a)]
                normed = [a for a in parts if self.norm(peel(self._scaled(peel(a))[0])) is not None]
                if len(normed) != 1 or not all(a in normed or op(peel(a)) == "embedding" for a in parts):
                    return None
                entry = normed[0]
                continue
            bare = self._scaled(entry)[0]
            if bare is entry:
                return None
            entry = bare

    def _final(self, end: Node) -> tuple[Norm | None, Node]:
        """The stack-final norm: one whose input is a sum over a state that no post-add norm made."""
        if op(end) in PRODUCTS and self._split(end) is None:
            end = self._data(end)  # OPT's smallest sizes project the state out of the stack
        norm = self.norm(end)
        if norm is None:
            return None, end
        split = self._sum(self._bare(norm.source)) or self._replacement(self._bare(norm.source))
        if split is None:
            return None, end
        shortcut = self.norm(self._bare(split[0]))
        if shortcut is not None and self._sum(self._bare(shortcut.source)) is not None:
            return None, end  # the shortcut is itself a normalised sum: this is the last post-add norm
        return norm, norm.source

    def head(self, logits: Node) -> tuple[float | None, float | None]:
        """(factor, softcap) between the state that leaves the stack and the logits; either side of the projection."""
        _, factor, cap = self._head(logits)
        return factor, cap

    def head_is_read(self, logits: Node) -> bool:
        """Whether replay confirms what `head` says of the operators after the last projection."""
        projected, factor, cap = self._projection(logits)
        if projected is None or factor is None:
            return True  # no factor is told
        return is_head(self.graph, self.recording.constants, logits, projected, factor, cap)

    def end(self) -> Node | None:
        """The value that leaves the stack: as the module names it, else what its last projection reads."""
        named, logits = self.recording.hidden.get("decoder"), self.recording.logits
        if named is not None or logits is None:
            return named
        if self.norm(peel(logits)) is not None or self._split(peel(logits)) is not None:
            return logits
        return self._head(logits)[0]

    def _head(self, logits: Node) -> tuple[Node | None, float | None, float | None]:
        """(what the last projection reads, factor, softcap)."""
        node, factor, cap = self._projection(logits)
        if node is None:
            return None, None, cap
        data = [a for a in node.all_input_nodes if self.graph.is_data(a)]
        if len(data) != 1:
            return None, None, cap
        state = peel(data[0])
        bare, before = self._scaled(state)
        return bare, times(factor, before), cap

    def _projection(self, logits: Node) -> tuple[Node | None, float | None, float | None]:
        """(the last projection, factor and softcap after it)."""
        node, cap, factor = peel(logits), None, 1.0
        while op(node) not in PRODUCTS:
            capped = softcap(node)
            if capped is not None:
                cap, node = capped[0], peel(capped[1])
                continue
            bare, own = self._scaled(node)
            if bare is not node:
                if own is None:
                    return None, None, cap
                node, factor = bare, factor * own
                continue
            data = [a for a in node.all_input_nodes if self.graph.is_data(a)]
            if len(data) != 1:
                return None, None, cap
            node = peel(data[0])
        return node, factor, cap


def _unlike(adds: list[Add]) -> tuple[list[Add], Norm | None]:
    """A norm after the last add alone, and after no other add of its kind, is the stack's final norm."""
    kinds = [tuple(b.kind for b in a.branches) for a in adds]
    alike = [a for a, k in zip(adds[:-1], kinds[:-1], strict=True) if k == kinds[-1]] if adds else []
    if not alike or adds[-1].norm_post is None or any(a.norm_post for a in alike):
        return adds, None
    return [*adds[:-1], replace(adds[-1], norm_post=None)], adds[-1].norm_post


def _shifted(adds: list[Add], first: Norm) -> tuple[list[Add], Norm | None]:
    """Post-add norms read as the norms through which the next branch and its shortcut are taken."""
    entries: list[Norm | None] = [first, *(a.norm_post for a in adds)]
    shifted = [
        replace(a, norm_post=None, branches=tuple(replace(b, norm_in=entries[i]) for b in a.branches))
        for i, a in enumerate(adds)
    ]
    return shifted, entries[-1]
