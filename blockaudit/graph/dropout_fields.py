"""The contract's dropout fields as the training graph shows them: owner, p, position, granularity, scaling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

from blockaudit.graph import masks
from blockaudit.graph.dropouts import OUTPUTS, STACK_OUTPUT, Place, places
from blockaudit.graph.flow import one_thread, op
from blockaudit.graph.reader import Reader
from blockaudit.graph.record import Recording
from blockaudit.graph.stream import Stream
from blockaudit.graph.training import Training
from blockaudit.records.contract import Statement

_CLOSE = 1e-6
# Owners of one value a branch; experts may each have a hidden layer.
_ONCE = {*OUTPUTS.values(), "embedding", "drop_path"}


@one_thread()
def speak(stacks: Iterable[str], training: Training | None, declared: Iterable[str]) -> dict[str, Statement]:
    """Every dropout field of these stacks; nothing of a stack that is not read whole.

    declared: the fields that a manifest names. Of an owner that it does not name only a dropout that acts is told.
    """
    said = dict[str, Statement]()
    if training is None:
        return said
    recording = training.recording
    drops, noise = masks.still(recording)
    reader, names = Reader(recording), [*stacks]
    ends = recording.hidden if len(names) > 1 else {names[0]: next(iter(recording.hidden.values()), reader.end())}
    # What the encoder drops goes into the decoder as well.
    for name in sorted(names, key=lambda n: n != "encoder"):
        end = ends.get(name)
        stream = reader.stream(end) if end is not None else None
        if end is None or stream is None or stream.unread:
            continue
        found = places(reader, stream, end, drops)
        mine = {p.drop for p in found}
        drops = [d for d in drops if d not in mine]
        odd = [f"{n.name}: {op(n)} is no dropout" for n in noise if reader.graph.precedes(n, end)]
        noise = [n for n in noise if not reader.graph.precedes(n, end)]
        said |= _Speaker(name, stream, training, found, frozenset(declared)).speak(odd)
    return said


class _Speaker:
    def __init__(
        self, stack: str, stream: Stream, training: Training, found: list[Place], declared: frozenset[str]
    ) -> None:
        self.stack, self.stream, self.training, self.found, self.declared = stack, stream, training, found, declared
        version = f", transformers {training.recording.version}" if training.recording.version else ""
        self.source = f"operators of {training.recording.class_name}{version}, in train mode"

    def speak(self, noise: list[str]) -> dict[str, Statement]:
        owners = dict.fromkeys(p.owner for p in self.found if p.owner)
        prefix = f"{self.stack}.dropout."
        named = [f.removeprefix(prefix)[:-2] for f in self.declared if f.startswith(prefix) and f.endswith(".p")]
        said: dict[str, Statement] = {}
        for owner in (*owners, *(sorted({*named} - {*owners}))):
            said |= self._owner(f"{prefix}{owner}", owner)
        nobodys = [p for p in self.found if not p.owner and self._p(p)]
        odd = sorted({f"{p.position}: p {self._p(p):g}" for p in nobodys if p.position != STACK_OUTPUT}) + noise
        of_stack = [self._p(p) for p in nobodys if p.position == STACK_OUTPUT]
        if of_stack:
            said[f"{prefix}stack_output.p"] = Statement(_one(of_stack), self.source, "operators")
        if odd:
            said[f"{prefix}unclassified"] = Statement(odd, self.source, "operators")
        return said

    def _owner(self, field: str, owner: str) -> dict[str, Statement]:
        mine = [p for p in self.found if p.owner == owner]
        at: dict[tuple[int, int], list[Place]] = {b: [] for b in self._branches(owner)}
        for place in mine:
            for branch in place.branches or ((-1, 0),):
                at.setdefault(branch, []).append(place)
        rates = [self._rate(owner, at[b]) for b in sorted(at)] or [0.0]
        if f"{field}.p" not in self.declared and not any(rates):
            return {}
        rising = _rises(rates)
        said = {"p": rates[-1] if rising else _one(rates)}
        if mine:
            said["position"] = _one([p.position for p in mine])
            said["granularity"] = _one([p.drop.granularity for p in mine])
            said["scaling"] = _one(["inverted" if p.drop.inverted else "none" for p in mine])
        if rising:
            said["schedule"] = "linear_in_depth"
        elif any(rates) and len({*rates}) == 1:
            said["schedule"] = "constant"
        names = ", ".join(dict.fromkeys(self.training.settings.original(p.drop.p)[0] for p in mine))
        evidence = f"{self.source}: {names}" if names else f"{self.source}: no such dropout"
        return {f"{field}.{name}": Statement(value, evidence, "operators") for name, value in said.items()}

    def _rate(self, owner: str, found: list[Place]) -> float:
        """The probability of one branch; an update that is dropped twice is kept by both masks alone."""
        rates = [self._p(p) for p in found]
        if owner in _ONCE and len({p.position for p in found}) == 1 < len(found):
            return 1 - prod(1 - p for p in rates)
        return max(rates, default=0.0)

    def _p(self, place: Place) -> float:
        return self.training.settings.original(place.drop.p)[1]

    def _branches(self, owner: str) -> Iterator[tuple[int, int]]:
        """The (add, branch) numbers where a dropout of this owner may stand; for the embedding its one place."""
        if owner == "embedding":
            yield (-1, 0)
            return
        for i, add in enumerate(self.stream.adds):
            for j, branch in enumerate(add.branches):
                output = OUTPUTS.get(branch.kind, "")
                attention = owner == "attention_probability" and "attention" in branch.kind
                hidden = owner == "mlp_hidden" and output == "mlp_output"
                if output == owner or attention or hidden or (owner == "drop_path" and output):
                    yield i, j


def _one(values: list[Any]) -> Any:
    """The value that all places have, else every value that occurs."""
    found = [*dict.fromkeys(values)]
    return found[0] if len(found) == 1 else sorted(found)


def _rises(rates: list[float]) -> bool:
    """Whether probabilities grow linearly from zero over the layers (several branches of a layer may share one)."""
    steps = [*dict.fromkeys(rates)]
    if len(steps) < 3 or steps[0] != 0 or rates != sorted(rates):
        return False
    return all(abs(p - steps[-1] * i / (len(steps) - 1)) <= _CLOSE for i, p in enumerate(steps))


def still(recording: Recording, exact: Recording | None) -> tuple[str, ...]:
    """Dropouts of an eval graph, which has none that should act; taken out of both, so that the rest can be read."""
    if exact is not None and exact is not recording:
        masks.still(exact)
    drops, _ = masks.still(recording)
    return tuple(f"{d.node.name}: drops by {d.granularity} at p {d.p:g}" for d in drops)
