"""Branches of a manifest, as JSON data: in which layers, under what, with which norms and tensors."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from blockaudit.graph.drafting import words
from blockaudit.graph.drafting.blocks import NAMES, BranchUnion, SiteUnion, StackUnion
from blockaudit.graph.drafting.catalog import Template, Unfit
from blockaudit.graph.drafting.layout import shown
from blockaudit.graph.drafting.specs import Specs

_STATE = {"q": "state", "k": "state", "v": "state"}
_MEMORY = {"q": "state", "k": "memory", "v": "memory"}
_KIND_NAMES = {"gated_mlp": "dense", "mlp": "dense", "causal_self_attention": "attention"}


class Branches(Specs):
    """Writes branches and layer kinds."""

    def _parallel(self, stack: StackUnion) -> dict[str, Any]:
        per_read = [{v for (r, _), v in stack.parallel.items() if r == i} for i in range(len(self.reads))]
        if any(len(s) > 1 for s in per_read):
            raise Unfit(f"{stack.name}: parallel layers beside sequential ones")
        values = [s == {True} for s in per_read]
        if not any(values):
            return {}
        return {"parallel": self._flag(self.symbols.condition(values, self._read_samples(), f"{stack.name}.parallel"))}

    def _ordered(self, stack: StackUnion) -> list[BranchUnion]:
        """Branches in order of execution."""
        before: set[tuple[tuple[str, str], tuple[str, str]]] = set()
        places = sorted({at for b in stack.branches.values() for at in b.found})
        for at in places:
            present = [k for k, b in stack.branches.items() if at in b.found]
            ranked = sorted(present, key=lambda k: self._rank(stack, at, k))
            before |= set(pairwise(ranked))
        left, ordered = list(stack.branches), list[BranchUnion]()
        while left:
            first = next((k for k in left if not any((o, k) in before for o in left)), None)
            if first is None:
                raise Unfit(f"{stack.name}: branches run in different orders")
            ordered.append(stack.branches[first])
            left.remove(first)
        return ordered

    def _rank(self, stack: StackUnion, at: tuple[int, int], key: tuple[str, str]) -> int:
        reading, layer = at
        facts = stack.facts[reading]
        each = len(facts.adds) // stack.depth[reading]
        start = (layer - stack.first) * each
        flat = [b for a in facts.adds[start : start + each] for b in a.branches]
        return next(i for i, b in enumerate(flat) if b is stack.branches[key].found[at])

    def _kinds(self, stack: StackUnion, spans: list[range]) -> dict[str, str]:
        """Layer kinds with their conditions; none where all layers hold the same keys."""
        mine = [t for t in self.templates.values() if t.stack == stack.name and not self._single(t, stack)]
        partial = [
            t
            for t in mine
            if any(s is not None and len(s) > 1 for s in t.shapes)
            and any(t.layers[i] and t.layers[i] != frozenset(span) for i, span in enumerate(spans))
        ]
        if not partial:
            return {}
        # Flags add and take keys in layers of every kind: kinds are told apart where they were in the base.
        marks = [t for t in partial if t.layers[0] and t.layers[0] != frozenset(spans[0])] or partial
        marked = [{n: frozenset(t.text for t in marks if n in t.layers[i]) for n in s} for i, s in enumerate(spans)]
        combos = list(dict.fromkeys(c for per in marked for c in per.values()))
        if len(combos) > 3:
            raise Unfit(f"{stack.name}: {len(combos)} kinds of layers")
        found: dict[str, str] = {}
        sets: dict[str, list[frozenset[int]]] = {}
        for combo in combos:
            there = [frozenset(n for n, c in per.items() if c == combo) for per in marked]
            name = self._kind_name(stack, there, found)
            found[name] = self.symbols.layers(there, spans, self.samples, f"a kind of layer of {stack.name}")
            sets[name] = there
        self.kinds[stack.name] = sets
        return found

    def _kind_name(self, stack: StackUnion, there: list[frozenset[int]], taken: dict[str, str]) -> str:
        """By what the branches of its layers are that other layers' are not."""
        places = {(r, n) for r, read in enumerate(self.reads) for n in there[self._at(read.sample)]}
        every = {(r, n) for (r, n) in stack.parallel}
        for branch in stack.branches.values():
            if branch.found and set(branch.found) <= places and places != every and branch.kind not in taken:
                name = _KIND_NAMES.get(branch.kind, branch.kind)
                if name not in taken:
                    return name
        return next(n for n in ("a", "b", "c") if n not in taken)

    def _branch(self, stack: StackUnion, branch: BranchUnion, core: dict[str, Any]) -> dict[str, Any]:
        what = f"{stack.name}.{branch.name}"
        data: dict[str, Any] = {"name": branch.name, "kind": branch.kind}
        data |= self._reads(stack, branch)
        if "attention" in branch.kind:
            data["sources"] = _MEMORY if branch.kind == "cross_attention" else _STATE
        kinds, when = self._where(stack, branch)
        if kinds:
            data["layer_kinds"] = kinds
        if when is not None:
            data["when"] = when
        data |= self._softcap(branch, what)
        norms: dict[str, Any] = {}
        for site in branch.sites.values():
            if site.site in norms:
                raise Unfit(f"{what}.{site.site}: two norms at one site")
            norms[site.site] = self._site(branch, site, f"{what}.{site.site}", core)
        data["norms"] = norms
        data["tensors"] = self._tensors(stack, branch, kinds, when)
        return {k: v for k, v in data.items() if v not in ({}, [])}

    def _reads(self, stack: StackUnion, branch: BranchUnion) -> dict[str, Any]:
        shares = {at: f.shares for at, f in branch.found.items()}
        if not any(shares.values()):
            return {}
        owners = {NAMES.get(s, s) for s in shares.values() if s}
        if len(owners) != 1:
            raise Unfit(f"{stack.name}.{branch.name}: reads norms of several branches")
        owner = f"{owners.pop()}.norm_in"
        places = list(shares)
        there = [shares[p] is not None for p in places]
        condition = self.symbols.condition(there, [self.reads[r].sample for r, _ in places], "a shared norm")
        if condition is None:
            return {"reads": owner}
        return {"reads": {"if": condition, "then": owner, "else": "state"}}

    def _where(self, stack: StackUnion, branch: BranchUnion) -> tuple[list[str], str | None]:
        """(layer kinds, when) of a branch."""
        kinds = self.kinds.get(stack.name, {})
        mine: list[str] = []
        for name, there in kinds.items():
            places = {(r, n) for r, read in enumerate(self.reads) for n in there[self._at(read.sample)]}
            if places & set(branch.found):
                mine.append(name)
        allowed = [
            {n for name in mine for n in kinds[name][self._at(read.sample)]} if mine else {*self._layers(stack, r)}
            for r, read in enumerate(self.reads)
        ]
        per_read = [{n for r, n in branch.found if r == i} for i in range(len(self.reads))]
        if any(found and found != want for found, want in zip(per_read, allowed, strict=True)):
            raise Unfit(f"{stack.name}.{branch.name}: is in some layers of a kind")
        asked = [i for i, want in enumerate(allowed) if want]
        there = [bool(per_read[i]) for i in asked]
        samples = [self.reads[i].sample for i in asked]
        when = self.symbols.condition(there, samples, f"{stack.name}.{branch.name}")
        return ([] if len(mine) == len(kinds) else mine), when

    def _softcap(self, branch: BranchUnion, what: str) -> dict[str, Any]:
        places = list(branch.found)
        caps = [branch.found[p].softcap for p in places]
        if all(c is None for c in caps):
            return {}
        return {"softcap": self.symbols.real(caps, [self.reads[r].sample for r, _ in places], f"{what}.softcap")}

    def _site(self, branch: BranchUnion, site: SiteUnion, what: str, core: dict[str, Any]) -> dict[str, Any]:
        data = self._norm(site, core)
        places = list(branch.found)
        per_read: dict[int, set[bool]] = {}
        for at in places:
            per_read.setdefault(at[0], set()).add(at in site.found)
        if any(len(v) > 1 for v in per_read.values()):
            raise Unfit(f"{what}: is in some layers")
        there = [v == {True} for v in per_read.values()]
        when = self.symbols.condition(there, [self.reads[r].sample for r in per_read], what)
        return data if when is None else {**data, "when": when}

    def _owned(self, stack: StackUnion, branch: BranchUnion) -> list[Template]:
        """Templates of a branch: those of its parameters, and unfused ones beside them."""
        mine: list[Template] = []
        for t in self.templates.values():
            if t.stack != stack.name or t.text in self.placed or self._single(t, stack):
                continue
            if (branch.name, branch.kind) in self._owner(t, stack):
                mine.append(t)
        return mine

    def _owner(self, t: Template, stack: StackUnion) -> set[tuple[str, str]]:
        own = self._parameter(t)
        owners = {k: {shown(p) for p in b.parameters} for k, b in stack.branches.items()}
        if own is not None:
            return {k for k, names in owners.items() if own in names}
        # Written apart and held together (experts): the branch whose parameters lie nearest.
        best: dict[tuple[str, str], int] = {
            k: max((_common(t.text, n) for n in names), default=0) for k, names in owners.items()
        }
        top = max(best.values(), default=0)
        return {k for k, v in best.items() if v == top and v > t.text.count("{l}", 0) and v > _depth(t.text)}

    def _tensors(
        self, stack: StackUnion, branch: BranchUnion, kinds: list[str], when: str | None
    ) -> list[dict[str, Any]]:
        mine = self._owned(stack, branch)
        sets = self.kinds.get(stack.name, {})
        allowed = [
            frozenset(n for k in (kinds or sets) for n in sets[k][i]) if sets else frozenset(self.spans(stack)[i])
            for i in range(len(self.samples))
        ]
        asked = [i for i, want in enumerate(allowed) if want]
        partial: dict[str, str] = {}
        for t in mine:
            if any(t.layers[i] and t.layers[i] != allowed[i] for i in asked):
                there, samples = [t.layers[i] for i in asked], [self.samples[i] for i in asked]
                partial[t.text] = self.symbols.layers(there, [allowed[i] for i in asked], samples, t.text)
        specs = self._specs(mine, asked, when, words.ROLES, partial)
        self.owned |= {t.text for t in mine}
        return specs


def _common(a: str, b: str) -> int:
    """How many leading names two dotted names have in common."""
    count = 0
    for x, y in zip(a.split("."), b.split("."), strict=False):
        if x != y:
            break
        count += 1
    return count


def _depth(text: str) -> int:
    """Names up to and with the layer number."""
    return text.split(".").index("{l}") + 1 if "{l}" in text else 0
