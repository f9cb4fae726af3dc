"""What the executed operators say of every contract field: the testimony of the third witness."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import torch
from msgspec.structs import replace

from blockaudit.graph import dropout_fields, joins
from blockaudit.graph.flow import one_thread
from blockaudit.graph.reader import Reader
from blockaudit.graph.record import Recording, RecordingError, record
from blockaudit.graph.speaker import Speaker
from blockaudit.graph.steps import NAMES
from blockaudit.graph.stream import Stream
from blockaudit.graph.tiny import LAYER_KEYS
from blockaudit.graph.training import Training, record_training
from blockaudit.records.bound import BoundManifest, StackSpan
from blockaudit.records.contract import Executed, Statement, Testimony

# Layers recorded of a deep stack: enough for every kind that patterns of this length hold.
MOST_LAYERS = 8


@one_thread()
def testify(bound: BoundManifest, config: Mapping[str, Any], code: str | None = None) -> Executed:  # noqa: PT028
    """Run the class that `config` names under fake tensors and read every contract field off its operators.

    code: the folder whose own modelling code may be run.
    """
    spans = [s for s in bound.spans if not s.ignored]
    unknown = [s.name for s in spans if s.run is None]
    if unknown:
        # A depth that cannot be one would be built all the same, layer by layer.
        return Executed(Testimony("executed"), failure=f"how many layers {', '.join(unknown)} has cannot be told")
    short, depths = _shortened(bound, config, spans, max(MOST_LAYERS, _kinds_within(spans)))
    try:
        recording, exact = _recorded(short, code)
    except RecordingError as error:
        return Executed(Testimony("executed"), failure=str(error))
    random = dropout_fields.still(recording, exact)
    said, unread = Speaker(bound, spans, recording, exact, depths).speak()
    if recording is exact:
        said = {f: s for f, s in said.items() if not f.endswith((".work_dtype", ".cast_order"))}
    training = record_training(_shortened(bound, config, spans, _kinds_within(spans))[0], code)
    said |= dropout_fields.speak([s.name for s in spans], training, bound.fields)
    return replace(_heard(said, unread, recording, recording.unread), random=random)


def _recorded(config: Mapping[str, Any], code: str | None) -> tuple[Recording, Recording | None]:
    """(bfloat16, which shows the casts; float32, whose constants are exact), as far as the class runs in each.

    A class that runs in float32 alone is recorded once: casts are then not seen. Raises RecordingError.
    """
    try:
        low = record(config, code=code)
    except RecordingError:
        low = None
    try:
        exact = record(config, torch.float32, code=code)
    except RecordingError:
        if low is None:
            raise
        return low, None  # some operators exist in bfloat16 alone; its constants are then rounded ones
    return low or exact, exact


@one_thread()
def testify_candidate(
    bound: BoundManifest, recording: Recording, exact: Recording | None, training: Training | None
) -> Executed:
    """The same of a user's own module, run in place of the class that config.json names."""
    spans = [s for s in bound.spans if not s.ignored]
    random = dropout_fields.still(recording, exact)
    said, unread = Speaker(bound, spans, recording, exact).speak()
    said |= dropout_fields.speak([s.name for s in spans], training, bound.fields)
    return replace(_heard(said, unread, recording), random=random)


def _heard(
    said: dict[str, Statement], unread: Iterable[str], recording: Recording, ignored: tuple[str, ...] | None = None
) -> Executed:
    testimony, unread = Testimony("executed", said), tuple(unread)
    # A stack that is read whole has no such join.
    odd = joins.misshapen(recording) if unread else ()
    return Executed(testimony, "", unread, recording.class_name, ignored, recording.idle, misshapen=tuple(odd))


def _shortened(
    bound: BoundManifest, config: Mapping[str, Any], spans: list[StackSpan], most: int
) -> tuple[dict[str, Any], dict[str, int]]:
    """The config with no more layers than patterns need (counts, and lists of one entry a layer), and those depths."""
    depths: dict[str, int] = {}
    # Where config.json names no class, it is the one that the manifest was bound as.
    named = bound.class_name or next(iter(bound.manifest.match.classes), bound.manifest.match.base_class)
    short = {**config, "architectures": [named]} if named else dict(config)
    for span in spans:
        keys = bound.fields[f"{span.name}.layers"].keys
        if span.run is None or span.run <= most or len(keys) != 1:
            continue
        for key, value in short.items():
            entries = cast("list[Any]", value) if isinstance(value, list) else []
            if len(entries) == span.run:
                short[key] = entries[:most]
        short[keys[0]] = depths[span.name] = most
    return short, depths


def _kinds_within(spans: list[StackSpan]) -> int:
    """How many layers hold every kind of layer: as many as a training graph needs, and two at least."""
    firsts = [min(layers) - s.first for s in spans for _, layers in s.kinds if layers]
    return max([1, *firsts]) + 1


def _cut(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config of which no manifest speaks, with no more layers than patterns need."""
    short = dict(config)
    for key in LAYER_KEYS:
        depth = short.get(key)
        if not isinstance(depth, int) or depth <= MOST_LAYERS:
            continue
        for name, value in short.items():
            entries = cast("list[Any]", value) if isinstance(value, list) else []
            if len(entries) == depth:
                short[name] = entries[:MOST_LAYERS]
        short[key] = MOST_LAYERS
    return short


@one_thread()
def testify_alone(recording: Recording, exact: Recording | None, training: Training | None) -> Executed:
    """What the operators of a module say, with no manifest to read them against: layers are what repeats."""
    random = dropout_fields.still(recording, exact)
    reader = Reader(recording)
    named = recording.hidden
    ends = {k: named[k] for k in ("encoder", "decoder") if k in named and named[k].op != "placeholder"}
    if "decoder" not in ends and (end := reader.end()) is not None:
        ends["decoder"] = end
    if "decoder" not in ends:
        return Executed(Testimony("executed"), failure="no value that leaves the stack was found")
    streams = {name: reader.stream(value) for name, value in ends.items()}
    doubts = [f"{name}: {doubt}" for name, stream in streams.items() for doubt in stream.unread]
    if doubts:
        return replace(_heard({}, doubts, recording), random=random)
    spans = [StackSpan(n, 0, len(s.adds) // _period(s), None, "operators") for n, s in streams.items()]
    nobody = cast("BoundManifest", SimpleNamespace(fields={}, expected=()))
    said, unread = Speaker(nobody, spans, recording, exact).speak()
    for name, stream in streams.items():
        odd = [b.update.name for a in stream.adds for b in a.branches if b.kind not in NAMES]
        # Nobody else says what such a branch is.
        unread += [f"{name}: {odd[0]}: a branch that mixes rows and is no attention has no kind"] if odd else []
    said |= dropout_fields.speak(list(streams), training, ())
    return replace(_heard(said, unread, recording), random=random)


def testify_class(config: Mapping[str, Any], code: str | None = None) -> Executed:  # noqa: PT028
    """What the class that `config` names executes, where no manifest speaks of it."""
    config = _cut(config)
    try:
        recording, exact = _recorded(config, code)
    except RecordingError as error:
        return Executed(Testimony("executed"), failure=str(error))
    training = record_training(config, code)
    return replace(testify_alone(recording, exact, training), class_name=recording.class_name, ignored=recording.unread)


def _period(stream: Stream) -> int:
    """How many adds a layer has: the shortest run of branches that the stack repeats."""
    kinds = [tuple(b.kind for b in a.branches) for a in stream.adds]
    n = len(kinds)
    return next(p for p in range(1, n + 1) if n % p == 0 and kinds == kinds[:p] * (n // p))
