"""Contract fields, said from streams that were read: the words of the executed witness."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any

from blockaudit.graph import scores
from blockaudit.graph.linear import granularity
from blockaudit.graph.norms import Norm
from blockaudit.graph.reader import Reader
from blockaudit.graph.record import Recording
from blockaudit.graph.steps import NAMES, Step, of_stack
from blockaudit.graph.stream import Branch, Stream
from blockaudit.records.bound import BoundManifest, StackSpan
from blockaudit.records.contract import Statement

_SCALES = {"self_attention": "attention", "cross_attention": "cross_attention", "mlp": "mlp"}
_SITES = {"norm_in": "pre_branch", "norm_out": "post_branch", "norm_post": "post_add"}


class Speaker:
    """Says what a recording executes, in the fields of one manifest, or of none."""

    def __init__(
        self,
        bound: BoundManifest,
        spans: list[StackSpan],
        recording: Recording,
        exact: Recording | None,
        depths: Mapping[str, int] | None = None,
    ) -> None:
        self.bound, self.spans, self.recording = bound, spans, recording
        self.reader = Reader(recording)
        self.depths = depths or {}  # layers that were run, of stacks that were not run whole
        self.exact = Reader(exact) if exact is not None else None
        self.said: dict[str, Statement] = {}
        self.unread: list[str] = []
        self.shifted = False
        self.scores = scores.Reader(self.reader.graph, recording.constants)
        self.routes: dict[str, scores.Route] = {}
        version = f", transformers {recording.version}" if recording.version else ""
        self.source = f"operators of {recording.class_name}{version}"

    def speak(self) -> tuple[dict[str, Statement], list[str]]:
        for span in self.spans:
            key = span.name if len(self.spans) > 1 else next(iter(self.recording.hidden), "")
            end = self.recording.hidden.get(key) or self.reader.end()
            if end is None:
                self.unread.append(f"{span.name}: no value that leaves the stack was found")
                continue
            numbers = None
            if self.exact is not None:
                leaves = self.exact.recording.hidden.get(key) or self.exact.end()
                numbers = self.exact.stream(leaves) if leaves is not None else None
            self._stack(span, self.reader.stream(end), numbers)
        self._logits()
        return {f: s for f, s in self.said.items() if self._spoken_of(f)}, self.unread

    def _spoken_of(self, field: str) -> bool:
        """Whether the manifest speaks of a branch by layer kind or not; the other way of speaking is dropped."""
        plain = re.sub(r"\[[\w|]+\]", "", field)
        owner, fields = field.partition(".inner")[0], self.bound.fields
        mine = _owner(owner)
        if any(_owner(f) == mine for f in fields):
            return True
        return plain == field and not any(_owner(re.sub(r"\[[\w|]+\]", "", f)) == mine for f in fields)

    def _say(self, field: str, value: Any, evidence: str = "") -> None:
        where = f"{self.source}: {evidence}" if evidence else self.source
        self.said[field] = Statement(value, where, "operators")

    # -- a stack ----------------------------------------------------------------------------------------------------

    def _stack(self, span: StackSpan, stream: Stream, numbers: Stream | None) -> None:
        name, self.shifted = span.name, stream.normalised_shortcut
        self.unread += [f"{name}: {doubt}" for doubt in stream.unread]
        steps = self._steps(span, stream)
        if not steps:
            return
        graph = self.reader.graph
        attentions = [scores.attention(graph, f"{name}.{s.name}", s.branch, s.add.shortcut) for s in steps]
        self.routes |= scores.routes(self.scores, attentions)
        exact = self._steps(span, numbers) if numbers else None
        if numbers is None or not exact or len(exact) != len(steps):
            numbers, exact = stream, steps
        self._agreed(f"{name}.parallel", [len(s.add.branches) > 1 for s in steps])
        for kind, layers in (("", tuple({s.layer: None for s in steps})), *span.kinds):
            mine = [(s, e) for s, e in zip(steps, exact, strict=True) if s.layer in layers]
            if mine:
                self._layers(name, kind, [s for s, _ in mine], [e for _, e in mine])
        self._norm(f"{name}.final_norm", "final_norm", [stream.final_norm])
        if stream.embed_norm is not None or f"{name}.embed_norm.present" in self.bound.fields:
            self._norm(f"{name}.embed_norm", "embed_norm", [stream.embed_norm])
        if numbers.embedding_scale is not None:
            self._say(f"{name}.embedding.scale", numbers.embedding_scale)

    def _steps(self, span: StackSpan, stream: Stream | None) -> list[Step]:
        """Branches in order of execution, with their layer numbers."""
        if stream is None:
            return []
        layers = self.depths.get(span.name, span.run or 0)
        found = of_stack(self.bound if self.bound.fields else None, span, stream, layers)
        if not found:
            self.unread.append(f"{span.name}: {len(stream.adds)} residual adds in {layers} layers")
        return found

    def _layers(self, stack: str, kind: str, steps: list[Step], exact: list[Step]) -> None:
        """The fields of one kind of layer (of all, where `kind` is empty)."""
        layers = dict.fromkeys(s.layer for s in steps)
        orders = [[s.branch.kind for s in steps if s.layer == n] for n in layers]
        qualified = f"{stack}[{kind}]" if kind else stack
        if all(s.told and not s.branch.doubt for s in steps):
            self._agreed(f"{qualified}.branch_order", orders, evidence=f"layers {min(layers)}-{max(layers)}")
        for name in dict.fromkeys(s.name for s in steps):
            owner = f"{stack}.{name}[{kind}]" if kind else f"{stack}.{name}"
            mine = [s for s in steps if s.name == name]
            self._branch(owner, mine)
            if name in _SCALES:
                scales = [s.branch.scale for s in exact if s.name == name]
                if None in scales and any(f is not None for f in scales):
                    self.unread.append(f"{stack}: the factor on {name} is learned in some layers and not in others")
                self._agreed(f"{stack}.residual.{_SCALES[name]}_branch_scale", scales)
        if not kind:
            factors = [s.add.shortcut_scale for s in exact]
            self._agreed(f"{stack}.residual.shortcut_scale", factors)
            retracts = [s.branch.retracts for s in exact]
            if all(f == 1.0 for f in factors) and not any(retracts):
                self._say(f"{stack}.residual.shortcut", "identity")
                self._say(f"{stack}.residual.update", "add")
            elif all(retracts):
                self._say(f"{stack}.residual.update", "interpolate_retract")
            learned = next((s.add for s in exact if s.add.shortcut_scale is None), None)
            if learned is not None and self.exact is not None:
                terms = [learned.shortcut, *(b.update for b in learned.branches)]
                what = granularity(self.exact.graph, learned.total, terms, learned.shortcut)
                self._say(f"{stack}.residual.shortcut", what or "unclassified", "a learned factor")
            self._say(f"{stack}.residual.shortcut_source", "normalised_state" if self.shifted else "state")

    def _branch(self, owner: str, steps: list[Step]) -> None:
        if all(s.told for s in steps):
            self._agreed(f"{owner}.kind", [s.branch.kind for s in steps])
        shared = [self._shared(s) for s in steps]
        self._agreed(f"{owner}.reads", [by or _read(s.branch) for s, by in zip(steps, shared, strict=True)])
        if f"{owner}.softcap" in self.bound.fields or any(s.branch.softcap for s in steps):
            self._agreed(f"{owner}.softcap", [s.branch.softcap for s in steps], none=True)
        route = self.routes.get(owner.partition("[")[0])
        if route is not None and (f"{owner}.score_route" in self.bound.fields or route.form != scores.NONE):
            self._say(f"{owner}.score_route", route.form, route.evidence)
        sites: dict[str, list[Norm | None]] = {
            "norm_in": [None if by else s.branch.norm_in for s, by in zip(steps, shared, strict=True)],
            "norm_out": [s.branch.norm_out for s in steps],
            "norm_post": [s.add.norm_post if s.last else None for s in steps],
        }
        for site, found in sites.items():
            if any(found) or f"{owner}.{site}.present" in self.bound.fields:
                self._norm(f"{owner}.{site}", site, found)
        for site, found in self._inner(owner, steps).items():
            self._norm(f"{owner}.{site}", site, found)

    def _shared(self, step: Step) -> str | None:
        """`self_attention.norm_in` where an earlier branch of the same add reads the very same norm."""
        norm = step.branch.norm_in
        for other in step.add.branches:
            if other is step.branch:
                return None
            if norm is not None and other.norm_in is not None and other.norm_in.output is norm.output:
                return f"{NAMES.get(other.kind, other.kind)}.norm_in"
        return None

    def _inner(self, owner: str, steps: list[Step]) -> dict[str, list[Norm | None]]:
        """Norms inside a branch by the site that the manifest gives their parameter (a label, no evidence of place)."""
        declared = [f for f in self.bound.fields if f.startswith(f"{owner}.inner.") and f.endswith(".present")]
        found: dict[str, list[Norm | None]] = {
            f.removeprefix(f"{owner}.").removesuffix(".present"): [] for f in declared
        }
        labels = [
            (re.compile(re.sub(r"\\\{\w+\\\}", r"\\d+", re.escape(e.template))), e.owner.removeprefix(f"{owner}."))
            for e in self.bound.expected
            if e.what == "norm" and e.role == "weight" and e.owner.startswith(f"{owner}.inner")
        ]
        for norm in (n for s in steps for n in s.branch.inner):
            site = next((site for label, site in labels if label.fullmatch(norm.weight)), None)
            if site is not None:
                found[site].append(norm)
        return {site: norms or [None] for site, norms in found.items()}

    # -- fields -----------------------------------------------------------------------------------------------------

    def _agreed(self, field: str, values: list[Any], none: bool = False, evidence: str = "") -> None:
        """One value where every layer has it; else the odd ones are shown by layer."""
        if not values or (not none and any(v is None for v in values)):
            return
        if all(v == values[0] for v in values):
            self._say(field, values[0], evidence)
            return
        shown = self._odd(field, values)
        rest = [v for v in values if v != shown]
        first, count = values.index(shown), len(values) - len(rest)
        elsewhere = max(rest, key=rest.count)
        self._say(field, shown, f"in {count} of {len(values)} places, the first at {first}; elsewhere {elsewhere}")

    def _odd(self, field: str, values: list[Any]) -> Any:
        """The value to show where layers differ: the farthest from the declared one, which it is held against."""
        declared = self.bound.fields.get(field)
        if declared is not None and declared.known:
            return max(values, key=lambda v: _distance(v, declared.value))
        common = max(values, key=values.count)
        return next(v for v in values if v != common)

    def _norm(self, owner: str, site: str, found: Iterable[Norm | None]) -> None:
        norms = list(found)
        there = [n for n in norms if n is not None]
        self._agreed(f"{owner}.present", [n is not None for n in norms])
        for name, value in _fields(site).items():
            if there:
                self._agreed(f"{owner}.{name}", [value(n) for n in there], evidence=there[0].weight)

    def _logits(self) -> None:
        reader = self.exact or self.reader
        node = reader.recording.logits
        if node is None:
            return
        if not reader.head_is_read(node):
            self.unread.append(f"{node.name}: replay does not confirm that the logits are scaled projections")
            return
        scale, cap = reader.head(node)
        if scale is not None:
            self._say("logits.scale", scale)
        self._say("logits.softcap", cap)


def _distance(value: Any, declared: Any) -> float:
    """How far a value is from a declared one: infinitely, where they differ and are no numbers."""
    if value == declared:
        return 0.0
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (value, declared))
    return abs(value - declared) if numbers else inf


def _read(branch: Branch) -> str:
    """What a branch takes its input from, where it is no other branch's norm."""
    if branch.origin is not None:
        return "an earlier state"
    return "state" if branch.beside is None else "state, and an earlier value beside it"


def _owner(field: str) -> str:
    """`decoder.mlp[moe]` of a branch's field, the whole name of any other (`decoder[moe].branch_order`)."""
    parts = field.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 else field


def _fields(site: str) -> dict[str, Callable[[Norm], Any]]:
    """How each contract field of a norm site is read off an executed norm."""
    return {
        "family": lambda n: n.family,
        "epsilon": lambda n: n.epsilon,
        "epsilon_location": lambda n: n.epsilon_location,
        "variance_correction": lambda n: n.variance_correction,
        "placement": lambda n: _SITES.get(site, "none"),
        "reduction_axes": lambda n: list(n.axes),
        "center": lambda n: n.center,
        "scale": lambda n: n.scale,
        "scale_offset": lambda n: n.scale_offset,
        "bias": lambda n: n.bias,
        "work_dtype": lambda n: n.work_dtype,
        "cast_order": lambda n: n.cast_order,
    }
