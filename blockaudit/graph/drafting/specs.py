"""Tensors and norms of a manifest, as JSON data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from blockaudit.graph.drafting import words
from blockaudit.graph.drafting.blocks import SiteUnion
from blockaudit.graph.drafting.catalog import Template, Unfit
from blockaudit.graph.drafting.layout import Layout
from blockaudit.graph.drafting.reading import FIELDS, NormFact
from blockaudit.graph.drafting.samples import Sample


class Specs(Layout):
    """Writes tensor specs and norm sites."""

    def _fields(self, found: dict[tuple[int, int], NormFact], what: str) -> dict[str, Any]:
        """Fields of a norm site over readings."""
        places = list(found)
        samples = [self.reads[r].sample for r, _ in places]
        said: dict[str, Any] = {}
        for name in (*FIELDS, "reduction_axes"):
            values = [dict(found[p].fields)[name] for p in places]
            if name == "epsilon":
                said[name] = self.symbols.real(values, samples, f"{what}.epsilon")
            elif all(v == values[0] for v in values):
                said[name] = values[0]
            elif all(isinstance(v, bool) for v in values):
                said[name] = self._flag(self.symbols.condition(values, samples, f"{what}.{name}"))
            else:
                raise Unfit(f"{what}: {name} is {' and '.join(map(str, dict.fromkeys(map(str, values))))}")
        if said["variance_correction"] is None:
            del said["variance_correction"]
        return said

    def _flag(self, condition: str | None) -> Any:
        """A condition as a value: true, a bound flag, or an expression."""
        return True if condition is None else self.symbols.value(condition)

    def _norm(self, site: SiteUnion, core: dict[str, Any]) -> dict[str, Any]:
        """One site: its own fields, its module and shape."""
        fields = self._fields(site.found, site.site)
        data = {k: v for k, v in fields.items() if core.get(k) != v}
        data |= {k: None for k in core if k not in fields and k != "variance_correction"}
        if "variance_correction" in core and "variance_correction" not in fields:
            data["variance_correction"] = None
        if not site.weight:
            return {**data, "module": None}
        text = self.key_of(site.weight)
        if text is None or not text.endswith(".weight"):
            raise Unfit(f"{site.weight}: no key of a norm's own is written for it ({text})")
        data["module"] = self.output[text].removesuffix(".weight")
        self.placed |= {text, f"{text.removesuffix('weight')}bias"}
        shape = self._shape(self.templates[text])
        if shape != ["d_model"]:
            data["shape"] = shape
        return data

    def _end(self, found: dict[tuple[int, int], NormFact], what: str, core: dict[str, Any]) -> dict[str, Any] | None:
        if not found:
            return None
        weights = {n.weight for n in found.values()}
        if len(weights) > 1:
            raise Unfit(f"{what}: {' and '.join(sorted(weights))}")
        data = self._norm(SiteUnion(what, weights.pop(), found), core)
        there = [any(r == i for r, _ in found) for i in range(len(self.reads))]
        when = self.symbols.condition(there, self._read_samples(), what)
        return data if when is None else {**data, "when": when}

    def _specs(
        self,
        mine: Sequence[Template],
        asked: Sequence[int],
        when: str | None,
        known: dict[str, str],
        partial: Mapping[str, str] = MappingProxyType({}),
    ) -> list[dict[str, Any]]:
        """Tensor specs of templates that belong together; a bias goes with its weight.

        partial: the condition over `l` of those that only some layers have.
        """
        by_text = {t.text: t for t in mine}
        samples = [self.samples[i] for i in asked]
        alone = {t.text for t in mine if t.text.endswith(".bias") and (t.text in partial or self._tied(t, samples))}
        modules = [
            t for t in mine if not (t.text.endswith(".bias") and f"{t.text[:-4]}weight" in by_text) or t.text in alone
        ]
        named = words.roles([_module(t.text) for t in modules], known)
        specs: list[dict[str, Any]] = []
        for t in modules:
            spec: dict[str, Any] = {"role": named[_module(t.text)]}
            text = self.output[t.text]
            spec |= {"module": text[:-7]} if text.endswith(".weight") else {"key": text}
            spec["shape"] = self._shape(t)
            beside = f"{t.text[:-6]}bias"
            spec |= {} if beside in alone else self._bias(t, by_text.get(beside), asked, spec["shape"])
            there = [bool(t.layers[i]) for i in asked]
            tied = self._tied(t, samples)
            if t.text in partial:
                spec["when"] = partial[t.text]
            elif tied:
                spec |= tied
            else:
                own = self.symbols.condition(there, samples, t.text)
                if own is not None and own != when:
                    spec["when"] = own
            specs.append(spec)
        return specs

    def _bias(self, t: Template, bias: Template | None, asked: Sequence[int], shape: list[str]) -> dict[str, Any]:
        if bias is None or not t.text.endswith(".weight"):
            return {}
        places = [i for i in asked if t.layers[i]]
        there = [bool(bias.layers[i]) for i in places]
        value = self._flag(self.symbols.condition(there, [self.samples[i] for i in places], bias.text))
        data: dict[str, Any] = {"bias": value}
        outs = [(t.shapes[i], bias.shapes[i]) for i in places]
        first = all(w is None or b is None or w[:1] == b for w, b in outs)
        last = all(w is None or b is None or w[-1:] == b for w, b in outs)
        if not first and last and len(shape) > 1:
            data["layout"] = "in_out"
        elif not first:
            raise Unfit(f"{bias.text} has no side of its weight")
        return data

    def _tied(self, t: Template, samples: Sequence[Sample]) -> dict[str, Any]:
        """`tied_to` and `tie`, where a tensor is written only while it shares no storage."""
        shown = self._parameter(t)
        if shown is None:
            return {}
        there = [shown in s.shared for s in samples]
        if not any(there):
            return {}
        stored = [any(self._template(k) == t.text for k in s.keys) for s in samples]
        if any(a == b for a, b in zip(there, stored, strict=True)):
            raise Unfit(f"{t.text} is tied and written, or neither")
        source = next(s.shared[shown] for s in samples if shown in s.shared)
        text = self.key_of(source)
        if text is None:
            raise Unfit(f"{t.text} is tied to {source}, which is not written")
        tie = self.symbols.condition(there, samples, f"the tie of {t.text}")
        return {"tied_to": self.output[text], "tie": self._flag(tie)}


def _module(text: str) -> str:
    return text.removesuffix(".weight")
