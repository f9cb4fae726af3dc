"""The residual stream, read backwards from the value that leaves a stack: sums, the shortcut of each, its branches.

The shortcut of a sum is the term that every other term is computed from. What is added to it are the branches' updates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from blockaudit.graph import causality, doubts, norms, replaced, rows
from blockaudit.graph.flow import MOVES, Flow, carried, dtype, number, op, operand, peel, replay, shape
from blockaudit.graph.norms import Norm
from blockaudit.graph.record import BATCH, LENGTH, MEMORY, Recording

Split = tuple[Node, float | None, list[tuple[Node, float | None]]]

_SUMS = {"add", "add_"}
_PRODUCTS = {"mm", "addmm", "bmm"}
_PROJECTS = {"mm", "addmm", "bmm", "split", "chunk", "split_with_sizes", "getitem", "slice"}


@dataclass(frozen=True)
class Branch:
    """One branch between two points of the stream.

    `scale` is the factor on its update, None where it is learned or no constant; `memory` is the value outside the
    stream that it reads.
    """

    update: Node
    norm_in: Norm | None
    norm_out: Norm | None
    inner: tuple[Norm, ...]
    scale: float | None
    kind: str
    memory: Node | None
    softcap: float | None
    core: Node  # the update behind its factors
    factor: float | None  # the part of the scale that the sum itself applies
    retracts: bool = False  # what is added is scale * (update - state): an interpolation towards the update
    doubt: str = ""  # why its kind is not told


@dataclass(frozen=True)
class Add:
    """One residual add: one branch, or several in parallel. `norm_post` normalises the sum."""

    total: Node
    shortcut: Node
    shortcut_scale: float | None
    branches: tuple[Branch, ...]
    norm_post: Norm | None


@dataclass(frozen=True)
class Stream:
    """A whole stack, first add first. `start` is the embedded input, before `embed_norm` where there is one.

    `unread` says what of it fits no reading that replay confirms.
    """

    adds: tuple[Add, ...]
    final_norm: Norm | None
    embed_norm: Norm | None
    start: Node
    embedding_scale: float | None
    normalised_shortcut: bool = False
    unread: tuple[str, ...] = ()


class Reader:
    """Reads streams out of one recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.graph = Flow(recording.nodes)
        self._norms: dict[Node, Norm | None] = {}

    def norm(self, node: Node) -> Norm | None:
        """The norm that ends at a value, behind views and with the casts around it."""
        node = peel(node, casts=False)
        after = list(node.users)
        # The cast back to the state's dtype ends the norm, where it has one.
        ends = [after[0]] if len(after) == 1 and op(after[0]) == "_to_copy" else []
        ends += [node, peel(node)]
        return next((n for end in dict.fromkeys(ends) if (n := self._at(end)) is not None), None)

    def _at(self, node: Node) -> Norm | None:
        if node not in self._norms:
            self._norms[node] = norms.find(self.graph, self.recording.names, self.recording.constants, node)
        return self._norms[node]

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
                post = self.norm(current)
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
            return _times(factor, self._token_scale(peel(core.all_input_nodes[0])))
        if op(core) in _SUMS:
            parts = [self._token_scale(peel(a)) for a in core.all_input_nodes if self.graph.is_data(a)]
            return _times(factor, next((p for p in parts if p is not None), None))
        if op(core) in _PRODUCTS:
            return _times(factor, self._token_scale(self._data(core)))  # a factorised embedding
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
            if op(entry) in _PRODUCTS:
                entry = self._data(entry)  # a factorised embedding is widened after its norm
                continue
            if op(entry) in _SUMS:
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

    def _bare(self, node: Node) -> Node:
        """A value of the stream behind layouts and the mask of rows that are padding."""
        while True:
            node = carried(node)
            inner = self._masked(node)
            if inner is None:
                return node
            node = inner

    def _masked(self, node: Node) -> Node | None:
        """The value behind a multiplication by a mask of its rows, where all rows are valid."""
        if op(node) != "mul":
            return None
        for value, by in ((operand(node, 0), operand(node, 1)), (operand(node, 1), operand(node, 0))):
            if value is None or by is None or shape(value) != shape(node) or shape(by)[-1:] != (1,):
                continue
            mask = self._mask(by)
            if mask is not None and bool((mask == 1).all()):
                return value
        return None

    def _data(self, product: Node) -> Node:
        """The operand of a matrix product that depends on the tokens."""
        return peel(next((a for a in product.all_input_nodes if self.graph.is_data(a)), product.all_input_nodes[0]))

    def _final(self, end: Node) -> tuple[Norm | None, Node]:
        """The stack-final norm: one whose input is a sum over a state that no post-add norm made."""
        if op(end) in _PRODUCTS and self._split(end) is None:
            end = self._data(end)  # OPT's smallest sizes project the state out of the stack
        norm = self.norm(end)
        if norm is None:
            return None, end
        split = self._sum(carried(norm.source)) or self._replacement(carried(norm.source))
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
        node, cap, factor = peel(logits), None, 1.0
        while op(node) not in _PRODUCTS:
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
        data = [a for a in node.all_input_nodes if self.graph.is_data(a)]
        if len(data) != 1:
            return None, None, cap
        state = peel(data[0])
        bare, before = self._scaled(state)
        return bare, _times(factor, before), cap

    # -- sums -------------------------------------------------------------------------------------------------------

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
        return shortcut, _times(own, factor), [(t, _times(f, factor)) for t, f in terms]

    def _replacement(self, node: Node) -> Split | None:
        """The same of a branch whose output takes the place of the state: the shortcut's factor is zero."""
        state = replaced.state(self.graph, node, lambda n: self._sum(n) is not None, self.norm)
        return None if state is None else (state, 0.0, [(node, 1.0)])

    def _merged(self, state: Node, factor: float | None, terms: list[tuple[Node, float]]) -> Split:
        """(shortcut, its factor, updates), where the state that is in a term once more is the shortcut's."""
        updates: list[tuple[Node, float | None]] = []
        for term, times in terms:
            node = peel(term)
            left, right = (
                (operand(node, 0), operand(node, 1)) if op(node) in _SUMS and not node.kwargs else (None, None)
            )
            again = [p for p in (left, right) if p is not None and peel(p) is state]
            other = [p for p in (left, right) if p is not None and peel(p) is not state]
            if len(again) == 1 and len(other) == 1 and self.graph.precedes(state, other[0]):
                factor = None if factor is None else factor + times
                node = peel(other[0])
            updates.append((node, times))
        return state, factor, updates

    def _split(self, node: Node) -> Split | None:
        """(shortcut, its factor, [(update, its factor)]) where `node` is a residual sum."""
        if op(node) not in _SUMS or len(shape(node)) < 2:
            return None
        terms = self._terms(node)
        for scaled in (False, True):
            # A shortcut that is read as it stands has no factor; one that is multiplied first is found behind it.
            for i, (term, factor) in enumerate(terms):
                core, own = self._scaled(peel(term)) if scaled else (peel(term), 1.0)
                others = [t for j, t in enumerate(terms) if j != i]
                if self.graph.is_data(core) and all(self.graph.precedes(core, t) for t, _ in others):
                    return self._merged(core, _times(own, factor), others)
        return None

    def _opened(self, shortcut: Node, term: Node, factor: float | None) -> list[tuple[Node, float | None]]:
        """The updates of one term: two, where branches are summed before they join the stream."""
        inner, own = self._scaled(peel(term))
        if op(inner) in _SUMS and self._inner_sum(inner):
            factor = _times(factor, own)
            alpha = inner.kwargs.get("alpha", 1)
            factors = (factor, _times(factor, float(alpha) if isinstance(alpha, int | float) else None))
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
            if op(inner) in _SUMS and shape(inner) == shape(node) and self._inner_sum(inner):
                opened += [(t, f * factor) for t, f in self._terms(inner)]
            else:
                opened.append((term, factor))
        return opened

    def _inner_sum(self, node: Node) -> bool:
        """Whether a term is itself a plain sum of two values of the state's shape (not a bias added to a product)."""
        parts = operand(node, 0), operand(node, 1)
        return all(p is not None and self.graph.is_data(p) and shape(p) == shape(node) for p in parts)

    def _scaled(self, node: Node) -> tuple[Node, float | None]:
        """A value behind constant factors, and their product; None where a factor is no known number."""
        factor: float | None = 1.0
        while op(node) in ("mul", "div", "mul_", "div_"):
            value, by = operand(node, 0), operand(node, 1)
            constant = number(node, 1)
            if value is None or (by is None and constant is None):
                break
            if by is not None:
                if self.graph.is_data(by) and not self.graph.is_data(value):
                    value, by = by, value
                if self.graph.is_data(by) or shape(value) != shape(node):
                    break
                if shape(by) not in ((), (1,)) and self.norm(node) is not None:
                    break  # a norm's own weight is no factor
                known = self.recording.constants.get(str(by.target))
                constant = float(known) if known is not None and known.numel() == 1 else None
            if factor is not None:
                factor = None if constant is None else factor * constant if "mul" in op(node) else factor / constant
            node = peel(value)
        return node, factor

    def _branches(self, shortcut: Node, terms: list[tuple[Node, float | None]]) -> tuple[Branch, ...]:
        """The branches of one add.

        A term that is a sum of two is opened where one of them is attention: experts that are summed before they join
        the stream are one branch.
        """
        opened = [u for t, f in terms for u in self._opened(shortcut, t, f)]
        opened.sort(key=lambda u: self.graph.index[u[0]])
        branches = tuple(self._branch(shortcut, u, f) for u, f in opened)
        if len(opened) == len(terms) or any("attention" in b.kind for b in branches):
            return branches
        return tuple(self._branch(shortcut, t, f) for t, f in terms)

    # -- branches ---------------------------------------------------------------------------------------------------

    def _branch(self, state: Node, update: Node, factor: float | None) -> Branch:
        # A norm's own weight is no factor on the branch.
        core, own = (update, 1.0) if self._ends(state, update) else self._scaled(update)
        target = self._target(state, core)
        core = target or core
        narrow = self.graph.bottlenecks(state, core)
        norm_in = self._entry(state, narrow)
        norm_out = self.norm(core)
        if norm_out is not None and norm_in is not None and norm_out.output is norm_in.output:
            norm_out = None
        start = norm_in.output if norm_in else state
        end = norm_out.source if norm_out else core
        region = self.graph.between(start, peel(end))
        kind, memory = self._kind(start, region, state)
        taken = {n.output for n in (norm_in, norm_out) if n is not None}
        inner = tuple(n for r in region if r not in taken and (n := self._inner(r)) is not None)
        scale, cap = _times(own, factor), self._softcap(region)
        return Branch(update, norm_in, norm_out, inner, scale, kind, memory, cap, core, factor, target is not None)

    def _target(self, state: Node, core: Node) -> Node | None:
        """The value towards which the state is moved, where an update is the difference of the two."""
        left, right = operand(core, 0), operand(core, 1)
        if left is None or right is None or peel(right) is not peel(state) or shape(left) != shape(core):
            return None
        alpha = core.kwargs.get("alpha", 1)
        away = -1 if op(core) == "sub" else 1
        return peel(left) if op(core) in ("sub", *_SUMS) and away * alpha == -1 else None

    def _ends(self, state: Node, update: Node) -> bool:
        """Whether a norm ends at an update."""
        norm = self.norm(update)
        return norm is not None and peel(norm.source) is not peel(state)

    def _entry(self, state: Node, narrow: list[Node]) -> Norm | None:
        """The norm that a branch reads through: all of it runs through the norm's output."""
        best: Norm | None = None
        for node in narrow:
            found = self.norm(node)
            if found is not None and peel(found.source) is peel(state):
                best = found
            elif best is not None:
                break
        return best

    def _inner(self, node: Node) -> Norm | None:
        """A norm inside a branch that ends exactly here (on q, k or a latent)."""
        if op(node) in MOVES or not shape(node):
            return None
        found = self._at(node)
        if found is None or found.output is not node or not found.weight:
            return None
        # The last multiply and the last cast both end a norm: the one that nothing more of the norm follows is the end.
        after = [self._at(u) for u in node.users if op(u) not in MOVES]
        return None if any(n is not None and n.weight == found.weight for n in after) else found

    def _kind(self, start: Node, region: list[Node], state: Node) -> tuple[str, Node | None]:
        """What a branch does, by the operators in it: rows of other positions, a choice of experts, a gate, or none."""
        names = {op(n) for n in region}
        if any(op(n).startswith("_scaled_dot_product") or _scores(n) for n in region):
            memory = self._memory(region, state)
            if memory is not None:
                return "cross_attention", memory
            masked = self._causal(region)
            return {True: "causal_self_attention", False: "self_attention", None: "unclassified"}[masked], None
        if "topk" in names and not any(op(n) == "convolution" for n in region):
            return "moe", None
        if names & {"_softmax", "_safe_softmax"} or rows.mixes(self.graph, self.recording.constants, start, region):
            return "unclassified", None
        return ("gated_mlp" if any(_gates(n, set(region)) for n in region) else "mlp"), None

    def _memory(self, region: list[Node], state: Node) -> Node | None:
        """The encoder's output, where it goes into the branch by another way than through the state."""
        encoder = self.recording.hidden.get("encoder")
        if encoder is None or self.graph.precedes(state, encoder):
            return None
        aside = {a for n in region for a in n.all_input_nodes} - set(region) - {state}
        own = [a for a in aside if not self.graph.precedes(state, a)]
        return encoder if any(a is encoder or self.graph.precedes(encoder, a) for a in own) else None

    def _causal(self, region: list[Node]) -> bool | None:
        """Whether the scores are masked so that a row sees no later one: the mask itself is computed and looked at.

        None where neither that nor weight on a later position is shown.
        """
        softmaxes = [n for n in region if _scores(n)]
        shown = causality.causal(self.graph, self.recording.constants, region, softmaxes)
        if shown is not None:
            return shown
        outside = {a for n in region for a in n.all_input_nodes} - set(region)
        for node in self.recording.nodes:
            square = shape(node)[-2:] == (LENGTH, LENGTH) and dtype(node) == torch.bool
            if square and any(self.graph.precedes(node, o) or node is o for o in outside):
                mask = self._mask(node)
                if (
                    mask is not None
                    and bool(mask.tril().eq(mask).all())
                    and bool(mask.diagonal(dim1=-2, dim2=-1).all())
                ):
                    return True
        return None

    def _mask(self, node: Node) -> torch.Tensor | None:
        """A mask's value for tokens that are all valid; None where it depends on weights."""
        made = [n for n in self.recording.nodes if n is node or self.graph.precedes(n, node)]
        if any(n.op == "get_attr" for n in made):
            return None
        inputs = [n for n in made if n.op == "placeholder"]
        known = {n: torch.ones(BATCH, LENGTH, dtype=torch.long) for n in inputs}
        try:
            return replay(made, known)[node]
        except (RuntimeError, TypeError, KeyError):
            return None

    def _softcap(self, region: list[Node]) -> float | None:
        for n in region:
            cap = softcap(n)
            if cap is not None:
                return cap[0]
        return None


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


def _scores(node: Node) -> bool:
    """A softmax over positions, and over a sink beside them where there is one (a router's is over experts)."""
    scores = ((LENGTH, LENGTH), (LENGTH, LENGTH + 1), (LENGTH, MEMORY))
    return op(node) in ("_softmax", "_safe_softmax") and len(shape(node)) >= 3 and shape(node)[-2:] in scores


def _gates(node: Node, region: set[Node]) -> bool:
    """A product of two projections of the branch's input."""
    if op(node) not in ("mul", "mul_"):
        return False
    left, right = operand(node, 0), operand(node, 1)
    if left is None or right is None or left not in region or right not in region:
        return False
    # x * sigmoid(x) multiplies one projection with itself.
    return shape(left) == shape(right) and _projection(left) is not _projection(right)


def _projection(node: Node) -> Node:
    """The projection that an activation was computed from."""
    while op(node) not in _PROJECTS and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def softcap(node: Node) -> tuple[float, Node] | None:
    """(c, x) where a value is c * tanh(x / c)."""
    cap, inner = number(node, 1), operand(node, 0)
    if op(node) != "mul" or cap is None or inner is None or op(inner) != "tanh":
        return None
    divided = operand(inner)
    if divided is None or op(divided) != "div" or number(divided, 1) != cap:
        return None
    capped = operand(divided)
    return None if capped is None else (cap, capped)


def _times(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a * b
