"""Where everything lies: the keys of all samples as templates, the stack and the parameter behind each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from blockaudit.graph.drafting import catalog
from blockaudit.graph.drafting.blocks import Read, StackUnion, union
from blockaudit.graph.drafting.catalog import Template, Unfit, layer_number
from blockaudit.graph.drafting.explore import Exploration
from blockaudit.graph.drafting.follow import Symbols
from blockaudit.graph.drafting.samples import Sample


class Layout:
    """Templates, stacks and parameters of one class over all samples. Methods raise Unfit where facts do not fit."""

    def __init__(self, found: Exploration, reads: Sequence[Read], base_prefix: str) -> None:
        self.found, self.reads, self.prefix = found, list(reads), base_prefix
        self.symbols = Symbols(found)
        own = found.samples
        self.samples = [*own, *(r.sample for r in reads if not any(r.sample is s for s in own))]
        self.stacks = union(reads)
        for stack in self.stacks.values():
            kinds = {k for (_, k), b in stack.branches.items() if any(r == 0 for r, _ in b.found)}
            if len(self.stacks) == 1 and "self_attention" in kinds and "causal_self_attention" not in kinds:
                stack.name = "encoder"
        self.disk = self._disk()
        self.templates = {t.text: t for t in catalog.templates(self.samples, self.disk)}
        self._named()
        self.symbols.learn(list(self.templates.values()), self.samples)
        self.axes: dict[str, str] = {}
        self.placed: set[str] = set()  # templates of norms
        self.owned: set[str] = set()  # of branches
        self.outside: set[str] = set()  # of embeddings
        self.own: set[str] = set()  # keys of the class beside the base model
        self.dropout: dict[str, Any] = {}
        self.parts: list[dict[str, Any]] = []
        self.output: dict[str, str] = {}  # template -> as it is written, with named axes
        self.kinds: dict[str, dict[str, list[frozenset[int]]]] = {}
        for t in self.templates.values():
            self.output[t.text] = self._axes(t)

    def _disk(self) -> dict[str, str]:
        """What stands before layer numbers on disk -> the stack."""
        found: dict[str, str] = {}
        for one in (self.found.base, *(r.sample for r in self.reads)):
            for key, parameter in one.names.items():
                inside, outside = layer_number(parameter), layer_number(key)
                if inside is None or outside is None:
                    continue
                for stack in self.stacks.values():
                    if inside[0] not in stack.prefixes:
                        continue
                    if inside[1] != outside[1] or found.setdefault(outside[0], stack.name) != stack.name:
                        raise Unfit(f"{key} is numbered in another way than {parameter}")
        if not found:
            raise Unfit("no layer numbers in the keys")
        return found

    def key_of(self, parameter: str) -> str | None:
        """The template under which a parameter (with `{l}` for its layer) is written; None where it never is."""
        return self.keys_of.get(parameter, self.keys_of.get(shown(parameter)))

    def _template(self, key: str) -> str | None:
        if key not in self._known:
            self._known[key] = next((t for t, pattern in self._patterns.items() if pattern.fullmatch(key)), None)
        return self._known[key]

    def _named(self) -> None:
        """Parameters by the template that they are written under, and the other way."""
        self._patterns = {t: re.compile(re.sub(r"\\\{[^}]*\\\}", r"(\\d+)", re.escape(t))) for t in self.templates}
        self._known: dict[str, str | None] = {}
        self.keys_of: dict[str, str] = {}
        self.parameter_of: dict[str, str] = {}
        for one in self.samples:
            for key, name in one.names.items():
                text = self._template(key)
                if text is not None:
                    self.keys_of.setdefault(shown(name), text)
                    self.parameter_of.setdefault(text, shown(name))

    def _axes(self, template: Template) -> str:
        """The template with its counted axes named."""
        text = template.text
        for mark, counts in template.counts.items():

            def read(i: int, counts: list[int] = counts) -> int | None:
                return counts[i] if template.layers[i] else None

            size = self.symbols.size(self.samples, template, read, "a count")
            wanted = "e" if "expert" in text.partition("{" + mark)[0].rpartition("{")[2] else "i"
            name = next((a for a, said in self.axes.items() if said == size and f"{{{a}}}" not in text), "")
            if not name:
                name = next(a for a in (wanted, *"ijkhmn") if a not in self.axes)
                self.axes[name] = size
            text = text.replace("{" + mark + "}", "{" + name + "}")
        return text

    def spans(self, stack: StackUnion) -> list[range]:
        """The layers of a stack in each sample."""
        found: list[range] = []
        mine = [t for t in self.templates.values() if t.stack == stack.name]
        for i in range(len(self.samples)):
            numbers = frozenset[int]().union(*(t.layers[i] for t in mine))
            span = range(stack.first, stack.first + len(numbers))
            if numbers != frozenset(span):
                raise Unfit(f"{stack.name}: layers {sorted(numbers)} are stored")
            found.append(span)
        return found

    def _read_samples(self) -> list[Sample]:
        return [r.sample for r in self.reads]

    def _single(self, t: Template, stack: StackUnion) -> bool:
        """A table that the first layer holds for all (T5's relative bias)."""
        return all(n <= {stack.first} for n in t.layers) and any(len(s) > 1 for s in self.spans(stack))

    def _at(self, sample: Sample) -> int:
        return next(i for i, s in enumerate(self.samples) if s is sample)

    def _shape(self, t: Template) -> list[str]:
        rank = {len(s) for s in t.shapes if s is not None}
        if len(rank) != 1:
            raise Unfit(f"{t.text} has {sorted(rank)} axes")

        def read(axis: int) -> Callable[[int], int | None]:
            def of(i: int) -> int | None:
                found = t.shapes[i]
                return None if found is None else found[axis]

            return of

        return [self.symbols.size(self.samples, t, read(a), f"axis {a}") for a in range(rank.pop())]

    def _parameter(self, t: Template) -> str | None:
        return self.parameter_of.get(t.text)

    def _layers(self, stack: StackUnion, reading: int) -> range:
        return range(stack.first, stack.first + stack.depth[reading])


def shown(name: str) -> str:
    """A parameter's name with its layer number as `{l}`."""
    number = layer_number(name)
    return name if number is None else f"{number[0]}{{l}}{number[2]}"
