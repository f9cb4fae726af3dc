"""A block manifest, as JSON data, from samples and readings of one class."""

from __future__ import annotations

from collections import Counter
from typing import Any

from blockaudit.graph.drafting import words
from blockaudit.graph.drafting.blocks import StackUnion
from blockaudit.graph.drafting.branches import Branches
from blockaudit.graph.drafting.catalog import Template, Unfit
from blockaudit.graph.drafting.reading import NormFact
from blockaudit.graph.drafting.samples import Sample

_RESIDUAL = {"self_attention": "attention", "cross_attention": "cross_attention", "mlp": "mlp"}


class Assembly(Branches):
    """Puts one manifest together."""

    def manifest(self) -> dict[str, Any]:
        norm = self._core()
        stacks = [self._stack(s, norm) for s in self.stacks.values()]
        self._logits(stacks[-1])
        self._embeddings(stacks)
        self._rest(stacks)
        order = {
            f"{s['name']}[{k}]" if k else s["name"]: _order(s["branches"], k)
            for s in stacks
            for k in (list(s.get("layer_kinds", {})) or [""])
        }
        data: dict[str, Any] = {
            "state_layout": ["batch", "sequence", "model"],
            "branch_order": next(iter(order.values())) if len(order) == 1 else order,
            "norm": norm,
        }
        if self.dropout:
            data["dropout"] = self.dropout
        residual = self._residual()
        if residual:
            data["residual"] = residual
        data |= {"dims": {}, "axes": self.axes, "stacks": stacks, "parts": {"head": self.parts} if self.parts else {}}
        return {k: v for k, v in data.items() if v or k == "dims"}

    def _core(self) -> dict[str, Any]:
        """What most norm sites have: every other site says what it has of its own."""
        votes: Counter[str] = Counter()
        values: dict[str, dict[str, Any]] = {}
        for stack in self.stacks.values():
            sites = [(s.site, s) for b in stack.branches.values() for s in b.sites.values()]
            described = [self._fields(s.found, f"{stack.name}.{name}") for name, s in sites]
            described += [self._fields(f, f"{stack.name}.{n}") for n, f in self._ends(stack).items() if f]
            for fields in described:
                votes[repr(sorted(fields.items(), key=str))] += 1
                values[repr(sorted(fields.items(), key=str))] = fields
        if not votes:
            raise Unfit("no norm was read")
        return dict(values[votes.most_common(1)[0][0]])

    def _ends(self, stack: StackUnion) -> dict[str, dict[tuple[int, int], NormFact]]:
        """The norms at the ends of a stack, by reading."""
        return {
            "embedding_norm": {(i, 0): f.embed_norm for i, f in enumerate(stack.facts) if f.embed_norm},
            "final_norm": {(i, 0): f.final_norm for i, f in enumerate(stack.facts) if f.final_norm},
        }

    def _stack(self, stack: StackUnion, core: dict[str, Any]) -> dict[str, Any]:
        spans = self.spans(stack)
        depth = Template(f"{stack.name}.layers", stack.name)
        layers = self.symbols.size(self.samples, depth, lambda i: len(spans[i]), "the depth")
        data: dict[str, Any] = {"name": stack.name, "layers": {"expr": layers}}
        if stack.first:
            data["first_layer"] = stack.first
        kinds = self._kinds(stack, spans)
        if kinds:
            data["layer_kinds"] = kinds
        data |= self._parallel(stack)
        data["embedding"] = []
        scales = [f.embedding_scale for f in stack.facts]
        scale = self.symbols.real(scales, self._read_samples(), f"{stack.name}.embedding.scale")
        if scale is None:
            raise Unfit(f"{stack.name}: the factor of the embedding is no number")
        if scale != 1.0:
            data["embedding_scale"] = scale
        ends = self._ends(stack)
        embedded = self._end(ends["embedding_norm"], f"{stack.name}.embedding_norm", core)
        if embedded is not None:
            data["embedding_norm"] = embedded
        data["branches"] = [self._branch(stack, b, core) for b in self._ordered(stack)]
        final = self._end(ends["final_norm"], f"{stack.name}.final_norm", core)
        if final is not None:
            data["final_norm"] = final
        return data

    def _embeddings(self, stacks: list[dict[str, Any]]) -> None:
        taken: set[str] = set()
        head = self.found.base.head
        for data, stack in zip(stacks, self.stacks.values(), strict=True):
            read = frozenset[str]().union(*(f.embedding for f in stack.facts))
            mine = [
                t
                for t in self.templates.values()
                if t.stack is None and t.text not in self.placed | taken
                and (p := self._parameter(t)) is not None and p in read and p != head
            ]  # fmt: skip
            weights = {m.text for m in mine if m.text.endswith(".weight")}
            biases = [t for t in self.templates.values() if f"{t.text.removesuffix('bias')}weight" in weights]
            mine += [b for b in biases if b not in mine and b.text.endswith(".bias")]
            taken |= {t.text for t in mine}
            data["embedding"] = self._specs(mine, range(len(self.samples)), None, words.EMBEDDINGS)
            if not data["embedding"]:
                del data["embedding"]
        self.outside = taken

    def _rest(self, stacks: list[dict[str, Any]]) -> None:
        """Keys of layers that no branch reads, and the class's own parts."""
        done = self.placed | self.outside | self.owned
        left = [t for t in self.templates.values() if t.text not in done]
        for data, stack in zip(stacks, self.stacks.values(), strict=True):
            mine = [t for t in left if t.stack == stack.name]
            single = [t for t in mine if self._single(t, stack)]
            others = [t for t in mine if t not in single]
            if others:
                raise Unfit(f"{others[0].text}: nothing that was run reads it")
            specs = self._specs(single, range(len(self.samples)), None, {})
            for spec, t in zip(specs, single, strict=True):
                text = t.text.replace("{l}", str(stack.first))
                spec.pop("module", None)
                spec["key"] = text
            if specs:
                data["tensors"] = specs
        heads = [t for t in left if t.stack is None]
        texts = {t.text for t in heads}
        self.own = {k for s in self.samples for k in s.keys if self._template(k) in texts}
        roles = {self.found.base.head.rpartition(".")[0].rpartition(".")[2]: "lm_head"} if self.found.base.head else {}
        self.parts = self._specs(heads, range(len(self.samples)), None, roles)

    def _residual(self) -> dict[str, Any]:
        data = self._branch_factors()
        places = [(r, f) for s in self.stacks.values() for (r, _), f in s.shortcut.items()]
        if any(f is None for _, f in places):
            raise Unfit("the factor of a shortcut is no number")
        samples = [self.reads[r].sample for r, _ in places]
        factor = self.symbols.real([f for _, f in places], samples, "the shortcut's factor")
        if factor != 1.0:
            data |= {"shortcut": "constant", "shortcut_scale": factor}
        shifted = {f.shifted for s in self.stacks.values() for f in s.facts}
        if shifted == {True}:
            data["shortcut_source"] = "normalised_state"
        elif len(shifted) > 1:
            raise Unfit("the shortcut carries the state in some configs and the normalised state in others")
        return data

    def _branch_factors(self) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for name, field in _RESIDUAL.items():
            ys: list[float | None] = []
            samples: list[Sample] = []
            for stack in self.stacks.values():
                for branch in stack.branches.values():
                    if branch.name == name:
                        ys += [f.scale for f in branch.found.values()]
                        samples += [self.reads[r].sample for r, _ in branch.found]
            if ys and any(y is None for y in ys):
                raise Unfit(f"the factor of {name} is no number")
            value = self.symbols.real(ys, samples, f"the factor of {name}") if ys else 1.0
            if value != 1.0:
                data[f"{field}_branch_scale"] = value
        for branch in (b for s in self.stacks.values() for b in s.branches.values() if b.name not in _RESIDUAL):
            if any(f.scale != 1.0 for f in branch.found.values()):
                raise Unfit(f"the factor of {branch.name} has no field")
        return data

    def _logits(self, last: dict[str, Any]) -> None:
        samples = self._read_samples()
        scales = [r.reading.logit_scale for r in self.reads]
        if any(s is None for s in scales):
            raise Unfit("the factor of the logits is no number")
        scale = self.symbols.real(scales, samples, "logits.scale")
        cap = self.symbols.real([r.reading.softcap for r in self.reads], samples, "logits.softcap")
        if scale != 1.0:
            last["logit_scale"] = scale
        if cap is not None:
            last["logit_softcap"] = cap


def _order(branches: list[dict[str, Any]], kind: str) -> list[str]:
    """Kinds of the branches of one kind of layer; of alternatives the first."""
    found: dict[str, str] = {}
    for b in branches:
        if not kind or not b.get("layer_kinds") or kind in b["layer_kinds"]:
            found.setdefault(b["name"], b["kind"])
    return list(found.values())
