"""A candidate whose values were recorded: nothing of it can be run, each site is read when its layer's turn comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from blockaudit.errors import RequestError
from blockaudit.graph.norms import Norm
from blockaudit.records.bound import BoundManifest, StackSpan
from blockaudit.records.sites import Site, parse
from blockaudit.reference import assembly
from blockaudit.reference.assembly import Block
from blockaudit.trace.candidate import Segment, Sites
from blockaudit.trace.files.known import Known
from blockaudit.trace.files.sources import Values
from blockaudit.trace.models import Inputs
from blockaudit.trace.program import Layer
from blockaudit.trace.reference import Full

# Directions in which a router's input is moved by its own rounding: experts that change with them are undecided.
_NUDGES, _SIZE = 4, 2.0
# What is not compared: a dropout that does nothing leaves the value before it.
_UNCOMPARED = ("dropped",)


@dataclass(frozen=True)
class Recorded:
    """A recorded candidate in one dtype. `values` gives what it had on some tokens, `ours` a full reference, if any."""

    label: str
    dtype: torch.dtype
    bound: BoundManifest
    device: torch.device
    values: Callable[[Inputs], Values]
    ours: Full | None
    recorded: bool = True

    @property
    def stacks(self) -> tuple[str, ...]:
        return tuple(span.name for span in self.spans)

    @property
    def spans(self) -> list[StackSpan]:
        return [span for span in self.bound.spans if not span.ignored]

    def run(self, inputs: Inputs) -> RecordedRun:
        return RecordedRun(self, self.values(inputs))

    def absent(self, inputs: Inputs) -> list[str]:
        """Sites beside the layers that the manifest has and the trace does not."""
        several, held = len(self.spans) > 1, self.values(inputs).sites
        wanted: list[str] = []
        for name in self.stacks:
            prefix = f"{name}." if several else ""
            norms = [s for s in ("embed_norm", "final_norm") if assembly.norm_site(self.bound, f"{name}.{s}")]
            wanted += [f"{prefix}{s}" for s in ("embed", *norms)]
        head = any(e.what == "part" and e.role == "lm_head" for e in self.bound.expected)
        return [s for s in (*wanted, *(["logits"] if head else [])) if s not in held]

    def strange(self, inputs: Inputs) -> list[str]:
        """Sites of the trace that lie in no stack or layer of the manifest."""
        several, spans = len(self.spans) > 1, {s.name: s for s in self.spans}

        def known(site: Site | None) -> bool:
            if site is None:
                return False
            span = spans.get(site.stack) if site.stack and several else self.spans[-1]
            placed = bool(site.stack) == several or (site.site == "logits" and not site.stack)
            return span is not None and placed and (site.layer is None or _holds(span, site.layer))

        return [name for name in self.values(inputs).sites if not known(parse(name))]


def _holds(span: StackSpan, layer: int) -> bool:
    return span.first <= layer < span.first + (span.run or 0)


class RecordedRun:
    """The values of one batch, segment by segment, as a run gives them."""

    def __init__(self, of: Recorded, values: Values) -> None:
        self._of, self._values = of, values
        self.outputs: dict[str, Tensor] = {}
        self.segments: list[Segment] = []
        self._names: dict[int, list[str]] = {}
        self._begins: dict[int, str] = {}
        self._ends: dict[int, str] = {}
        self._left: dict[str, Tensor] = {}
        self._sites: Sites = {}
        self._enter: Tensor | None = None
        self._routed: dict[str, Tensor | None] = {}
        self._lay_out()

    @property
    def device(self) -> torch.device:
        return self._of.device

    @property
    def stacks(self) -> tuple[str, ...]:
        return self._of.stacks

    def reads(self, segment: Segment) -> Sequence[str]:
        del segment
        return ()

    def begins_in(self, segment: Segment, stack: str) -> bool:
        return self._begins.get(segment.begin) == stack

    def ends_in(self, segment: Segment, stack: str) -> bool:
        return self._ends.get(segment.begin) == stack

    def advance(self, segment: Segment) -> Sites:
        """The recorded values of one segment."""
        names = self._names[segment.begin]
        if segment.layer is None:
            return self._between(segment, {name: self._tensor(name) for name in names})
        at = segment.layer
        prefix = f"{self._prefix(at.stack)}layers.{at.number}."
        found = {name.removeprefix(prefix): self._tensor(name) for name in names}
        last = assembly.block(self._of.bound, at.stack, at.number)
        self._alias(last, found)
        self._enter, self._sites, self._routed = self._left.pop(at.stack, None), found, {}
        state = found.get("state", _added(last, found))
        if state is not None:
            self._left[at.stack] = state
        return found

    def _between(self, segment: Segment, found: Sites) -> Sites:
        stack = self._begins.get(segment.begin)
        if stack is not None:
            prefix, bound = self._prefix(stack), self._of.bound
            normed = assembly.norm_site(bound, f"{stack}.embed_norm") is not None
            start = found.get(f"{prefix}embed_norm" if normed else f"{prefix}embed")
            projects = any(e.role == "project_in" and e.owner == f"{stack}.embedding" for e in bound.expected)
            known = start is not None and (self._of.ours is not None or not projects)
            state = self.enter(stack, start) if known and start is not None else None
            if state is not None:
                self._left[stack] = state
        return found

    @staticmethod
    def _alias(block: Block, found: Sites) -> None:
        """What leaves the last branch is what leaves the layer: a trace may have it under either name."""
        if block.parallel or not block.branches:
            return
        last = f"{block.branches[-1].name}.state"
        if "state" in found:
            found.setdefault(last, found["state"])
        elif last in found:
            found["state"] = found[last]

    def entering(self, segment: Segment) -> Tensor | None:
        """The state that entered the layer that ran last: recorded, or its own shortcut where that is plain."""
        assert segment.layer is not None
        if self._enter is not None:
            return self._enter
        return self._shortcut(assembly.block(self._of.bound, segment.layer.stack, segment.layer.number))

    def _shortcut(self, block: Block) -> Tensor | None:
        first = next(iter(block.branches), None)
        if first is None or not assembly.plain(block, first):
            return None
        return self._sites.get(f"{first.name}.residual")

    def judged(self, block: Block, sites: Sites) -> frozenset[str] | None:
        """The sites whose inputs were recorded, or are sums of what was."""
        found = Known(block, sites, self._enter is not None, self._shortcut(block) is not None).judged()
        memory = any(name != block.stack for name in self.outputs)
        for part in block.branches:
            if self._of.ours is None or ("cross" in part.kind and not memory):
                found.discard(f"{part.name}.branch")
        return frozenset(found)

    def left(self, stack: str) -> Tensor | None:
        return self._left.get(stack)

    def gives(self, stack: str, normed: Tensor | None, declared: bool) -> Tensor | None:
        return normed if declared else self._left.get(stack)

    def enter(self, stack: str, state: Tensor) -> Tensor:
        """From the embedding to the state that the first layer reads, which our own reference projects (ALBERT)."""
        return state if self._of.ours is None else self._of.ours.enter(stack, state)

    def routes(self, layer: Layer, name: str) -> Tensor | None:
        """The experts [B, S, top_k] that each row must have gone to; -1 where its own rounding could decide."""
        if name not in self._routed:
            self._routed[name] = self._decided(layer, name)
        return self._routed[name]

    def _decided(self, layer: Layer, name: str) -> Tensor | None:
        ours, block = self._of.ours, assembly.block(self._of.bound, layer.stack, layer.number)
        part = next((b for b in block.branches if b.name == name), None)
        enter = self._enter if self._enter is not None else self._shortcut(block)
        if ours is None or part is None or (enter is None and part.reads == "state" and "norm_in" not in part.norms):
            return None
        inside = assembly.read_by(block, part, self._sites, enter if enter is not None else torch.zeros(()))
        chosen = None if inside is None else ours.routes(layer, name, inside.to(ours.dtype))
        if inside is None or chosen is None:
            return None
        draw = torch.Generator().manual_seed(0)
        stable = torch.ones_like(chosen[..., 0], dtype=torch.bool)
        for _ in range(_NUDGES):
            noise = torch.randn(inside.shape, generator=draw).to(inside.device) * torch.finfo(self._of.dtype).eps
            moved = ours.routes(layer, name, inside.to(ours.dtype) * (1 + _SIZE * noise))
            stable &= moved is not None and (moved == chosen).all(-1)
        return torch.where(stable[..., None], chosen, -1)

    def norm(self, norm: Norm) -> Callable[[Tensor], Tensor] | None:
        del norm
        return None

    def outer_norms(self) -> Mapping[str, Norm]:
        return {}

    def rerun(self, segment: Segment, state: Tensor, ends: Mapping[str, Tensor]) -> NoReturn:
        raise self._refusal()

    def branch(self, layer: Layer, name: str, x: Tensor) -> NoReturn:
        raise self._refusal()

    def route(self, layer: Layer, name: str, x: Tensor) -> NoReturn:
        raise self._refusal()

    def _refusal(self) -> RequestError:
        return RequestError(f"{self._of.label}: a recorded trace cannot be run on other values")

    def _prefix(self, stack: str) -> str:
        return f"{stack}." if len(self.stacks) > 1 else ""

    def _tensor(self, name: str) -> Tensor:
        """A site on the device; in the dtype judged where a wider one that it is stored in holds no more."""
        value = self._values.tensor(name).to(self.device)
        narrow = value.to(self._of.dtype)
        return narrow if torch.equal(narrow.to(value.dtype), value) else value

    def _lay_out(self) -> None:
        """Segments as the manifest's stacks have them, and the recorded names in each."""
        layers: dict[tuple[str, int], list[str]] = {}
        for name in self._values.sites:
            site = parse(name)
            if site is not None and site.layer is not None and site.site not in _UNCOMPARED:
                layers.setdefault((site.stack, site.layer), []).append(name)
        ended = ""
        for span in self._of.spans:
            prefix = self._prefix(span.name)
            self._append(None, [f"{ended}final_norm"] * bool(ended) + [f"{prefix}embed", f"{prefix}embed_norm"])
            self._begins[len(self.segments) - 1] = span.name
            for number in range(span.first, span.first + (span.run or 0)):
                names = layers.get((span.name if prefix else "", number), [])
                self._append(Layer(span.name, number, ()), names)
            self._ends[len(self.segments)] = span.name
            ended = prefix
        self._append(None, [f"{ended}final_norm", "logits"])

    def _append(self, layer: Layer | None, names: list[str]) -> None:
        place = len(self.segments)
        self.segments.append(Segment(place, place + 1, layer))
        self._names[place] = [name for name in names if name in self._values.sites]


def _added(block: Block, sites: Sites) -> Tensor | None:
    """The state that leaves a layer of which the last add's two sides were recorded, and the sum was not."""
    last = block.branches[-1] if block.branches else None
    if last is None or block.parallel or "norm_post" in last.norms:
        return None
    total = sites.get(f"{last.name}.sum")
    core = f"{last.name}.norm_out" if "norm_out" in last.norms else f"{last.name}.branch"
    update = sites.get(f"{last.name}.update", sites.get(core) if last.scale == 1 else None)
    shortcut = sites.get(f"{last.name}.residual")
    if total is not None or update is None or shortcut is None:
        return total
    return shortcut + update
