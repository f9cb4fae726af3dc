"""One entry of the census: build it tiny, record it, read it, rebuild it. Run by `census` in a process of its own."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx import Node

from blockaudit.graph import live, tiny, upstream
from blockaudit.graph.flow import carried
from blockaudit.graph.norms import Norm
from blockaudit.graph.reader import Reader
from blockaudit.graph.rebuild import Verdict, rebuild
from blockaudit.graph.record import Recording
from blockaudit.graph.stream import Add, Branch, Stream

# Round-off of FP32 over a few layers, relative to the largest logit.
FP32 = 1e-4
# Seconds of processor time that one entry may take.
SECONDS = 90
# Characters of a reason that are kept.
_SAID = 160
_MACHINE = tuple(torch.finfo(d).eps for d in (torch.float32, torch.bfloat16, torch.float16))
_SHORT = {"layernorm": "ln", "rmsnorm": "rms", "scalenorm": "scale", "dyt": "dyt"}
_NAMES = {
    "causal_self_attention": "attn", "self_attention": "attn", "cross_attention": "cross", "gated_mlp": "mlp",
    "unclassified": "mix",
}  # fmt: skip


def examine(task: str, model_type: str, class_name: str) -> dict[str, Any]:
    """The row of one entry."""
    row: dict[str, Any] = {"task": task, "type": model_type, "class": class_name}
    began = time.monotonic()
    try:
        model, config, recording = build(model_type, class_name, moved=True)
    except tiny.NotBuilt as error:
        return {**row, "verdict": "not run", "reason": str(error)}
    except _LateError:
        return {**row, "verdict": "not run", "reason": f"more than {SECONDS} s of processor time"}
    try:
        found = _read(model, config, recording, model_type, class_name)
        return {**row, **found, "seconds": round(time.monotonic() - began, 1)}
    except _LateError:
        return {**row, "verdict": "not read", "reason": f"reader: more than {SECONDS} s of processor time"}
    except Exception as error:  # a fault of the reader is a row, not the end of the census
        return {**row, "verdict": "not read", "reason": f"reader: {_first(error)}"}


def build(model_type: str, class_name: str, *, moved: bool = False) -> tuple[Any, Any, Recording]:
    """The tiny model, its config and its recording, by the first way of filling its config that works.

    Every weight is random; with `moved` every epsilon of the config is as well, so that a wrong one shows.
    """
    import transformers

    reasons: list[str] = []
    for make in tiny.configs(model_type, class_name, moved=moved):
        try:
            config = make()
            torch.manual_seed(3)  # pyright: ignore[reportUnknownMemberType] - untyped upstream
            cls: Any = getattr(transformers, class_name)
            model = cls._from_config(config).float().eval()
            live.randomise(model)
            given = tiny.inputs(config, 1)
            live.forward(model, given)
            return model, config, live.record_model(model, given, transformers.__version__)
        except Exception as error:  # model code may raise anything
            reasons.append(_first(error))
    raise tiny.NotBuilt(reasons[0])


def _read(model: Any, config: Any, recording: Recording, model_type: str, class_name: str) -> dict[str, Any]:
    fresh = tiny.inputs(config, 2)
    real = live.forward(model, fresh)
    run = _again(recording, fresh)
    streams = _streams(recording)
    row: dict[str, Any] = {"equations": [f"{k}: {e}" for k, s in streams.items() for e in _equations(s)]}
    oddities: list[str] = []
    if not run or _drift(recording, run, real):
        # Code that reads the tokens runs other operators on others: they must be read as the same equation.
        recording = live.record_model(model, fresh, recording.version)
        run, streams = live.values(recording, fresh.values(), live.weights(recording)), _streams(recording)
        if row["equations"] != [f"{k}: {e}" for k, s in streams.items() for e in _equations(s)]:
            return {**row, "verdict": "not read", "reason": "other tokens give another equation"}
        oddities = ["other tokens run other operators"]
    ends = _ends(recording, Reader(recording))
    verdicts = {k: rebuild(recording, s, ends[k], run) for k, s in streams.items()}
    row["oddities"] = [*oddities, *(f"{k}: {o}" for k, v in verdicts.items() for o in v.oddities)]
    bad = [(k, v) for k, v in verdicts.items() if v.kind != "confirmed"]
    if bad:
        kinds = {v.kind for _, v in bad}
        kind = "contradicted" if "contradicted" in kinds else "not read"
        return {**row, "verdict": kind, "reason": "; ".join(_said(k, v) for k, v in bad)}
    if not verdicts:
        return {**row, "verdict": "not read", "reason": "no value that leaves a stack was found"}
    drift = _drift(recording, run, real)
    if drift:
        return {**row, "verdict": "not read", "reason": f"the recorded operators do not give {', '.join(drift)} again"}
    unread = [f"{k}: {doubt}" for k, s in streams.items() for doubt in s.unread]
    if unread:
        return {**row, "verdict": "not read", "reason": "; ".join(unread)}
    if recording.logits is None or "decoder" not in ends:
        return {**row, "verdict": "not read", "reason": "no logits to hold the rebuild against"}
    wrong = _logits(recording, ends, run, verdicts, real)
    if wrong:
        return {**row, "verdict": "contradicted", "reason": wrong}
    sites = [(k, n) for k, s in streams.items() for n in _sites(s)]
    source = _Source(model_type, class_name, config)
    row["norms"] = list(dict.fromkeys(f"{k}: {_norm(n, source)}" for k, n in sites))
    row["oddities"] += list(dict.fromkeys(source.remarks(n for _, n in sites)))
    return {**row, "verdict": "confirmed", "reason": ""}


def _again(recording: Recording, inputs: Mapping[str, torch.Tensor]) -> dict[Node, Any]:
    """What the recorded operators give; nothing where they cannot be run on these tokens."""
    try:
        return live.values(recording, inputs.values(), live.weights(recording))
    except (RuntimeError, TypeError, ValueError, IndexError):
        return {}


def _streams(recording: Recording) -> dict[str, Stream]:
    reader = Reader(recording)
    return {k: reader.stream(end) for k, end in _ends(recording, reader).items()}


def _drift(recording: Recording, run: Mapping[Node, Any], real: Mapping[str, torch.Tensor]) -> list[str]:
    """The values that the recorded operators do not give as the model itself does."""
    ends = {**recording.hidden, "logits": recording.logits}
    return [k for k, end in ends.items() if end is not None and _off(run[end], real[k])]


def _ends(recording: Recording, reader: Reader) -> dict[str, Node]:
    """The value that leaves each stack; where the logits come from more rows of it, with all of them."""
    ends, logits = dict(recording.hidden), recording.logits
    if "decoder" not in ends and (found := reader.end()) is not None:
        ends["decoder"] = found
    end = ends.get("decoder")
    if end is not None and logits is not None and not reader.graph.precedes(end, logits):
        ends["decoder"] = carried(end)
    return ends


def _logits(
    recording: Recording,
    ends: Mapping[str, Node],
    run: Mapping[Any, Any],
    verdicts: dict[str, Verdict],
    real: dict[str, Any],
) -> str:
    """The model's own logits in FP32 against those of the rebuilt state."""
    end, logits = ends.get("decoder"), recording.logits
    if end is None or logits is None:
        return ""
    graph = Reader(recording).graph
    region = graph.between(end, logits)
    if not region and end is not logits:
        return "the logits do not come from the value that leaves the stack"
    known = {a: run[a] for n in region for a in n.all_input_nodes if a not in region}
    ours = live.replay(region, {**known, end: verdicts["decoder"].state})[logits]
    return "the logits differ" if _off(ours, real["logits"]) else ""


def _off(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return not float((ours - theirs.double()).abs().max()) <= FP32 * (1e-6 + float(theirs.abs().max()))


def _said(stack: str, verdict: Verdict) -> str:
    where = "" if verdict.first is None else f" at add {verdict.first}"
    return f"{stack}{where}: {verdict.reason}"


def _first(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines)
    return f"{type(error).__name__}: {said if len(said) <= _SAID else said[:_SAID].rsplit('. ', 1)[0]}"


# -- how a stack is written ----------------------------------------------------------------------------------------


def _equations(stream: Stream) -> list[str]:
    """The distinct adds of a stack in order, `x3` after one that comes again."""
    lines = [_add(a, stream.normalised_shortcut) for a in stream.adds]
    scale = 1.0 if stream.embedding_scale is None else stream.embedding_scale
    start = f"h = {_wrap(stream.embed_norm, _factor(scale) + 'embed')}"
    end = [f"out = {_wrap(stream.final_norm, 'h')}"] if stream.final_norm else []
    return [start, *(f"{line} (x{lines.count(line)})" for line in dict.fromkeys(lines)), *end]


def _add(add: Add, shifted: bool) -> str:
    shortcut = _factor(add.shortcut_scale)
    if shifted:
        shortcut += _wrap(add.branches[0].norm_in, "h")
    else:
        shortcut += "h"
    return f"h = {_wrap(add.norm_post, ' + '.join([shortcut, *(_branch(b) for b in add.branches)]))}"


def _branch(branch: Branch) -> str:
    memory = ", memory" if branch.memory is not None else ""
    read = "h earlier" if branch.origin is not None else "h"
    read = f"[{read}, earlier]" if branch.beside is not None else read
    inside = f"{_NAMES.get(branch.kind, branch.kind)}({_wrap(branch.norm_in, read)}{memory})"
    update = _wrap(branch.norm_out, inside)
    return _factor(branch.scale) + (f"({update} - h)" if branch.retracts else update)


def _factor(scale: float | None) -> str:
    return "learned * " if scale is None else "" if scale == 1.0 else f"{scale:.6g} * "


def _wrap(norm: Norm | None, inside: str) -> str:
    return inside if norm is None else f"{_SHORT.get(norm.family, norm.family)}({inside})"


def _sites(stream: Stream) -> list[Norm]:
    found = [stream.embed_norm, stream.final_norm]
    found += [n for a in stream.adds for b in a.branches for n in (b.norm_in, b.norm_out)]
    found += [a.norm_post for a in stream.adds]
    return [n for n in found if n is not None]


def _norm(norm: Norm, source: _Source) -> str:
    """A norm with its epsilon as the defaults of its config have it, and where that comes from."""
    gain = "no weight" if norm.scale == "none" else "1 + weight" if norm.scale_offset else "weight"
    return f"{norm.family}, {gain}{', bias' if norm.bias else ''}, {source.epsilon(norm)}"


class _Source:
    """Where the epsilon of a norm comes from, in a model whose config has every epsilon moved to a value of its own."""

    def __init__(self, model_type: str, class_name: str, config: Any) -> None:
        self.defaults = tiny.epsilons(tiny.default(tiny.config_class(model_type, class_name)))
        self._keys = {f"{v:.5g}": k for k, v in tiny.epsilons(config).items()}

    def key(self, norm: Norm) -> str | None:
        """The config key that the epsilon followed; None where it followed none."""
        return None if norm.epsilon is None else self._keys.get(f"{norm.epsilon:.5g}")

    def epsilon(self, norm: Norm) -> str:
        key = self.key(norm)
        if key is not None:
            return f"eps {self.defaults.get(key, norm.epsilon):g} ({key})"
        if norm.epsilon is None:
            return "no epsilon"
        # A number with many digits is no one's default: it was made of one that was moved.
        plain = any(abs(norm.epsilon - v) <= 1e-4 * v for v in (float(f"{norm.epsilon:.1g}"), *_MACHINE))
        return f"eps {norm.epsilon:g} (in the code)" if plain else "eps computed from the config"

    def remarks(self, norms: Iterator[Norm]) -> Iterator[str]:
        """Epsilons that the code sets although a key of the config has another value for one."""
        known = {k: v for k, v in self.defaults.items() if k in self._keys.values()}
        for norm in norms:
            if norm.epsilon is None or self.key(norm) is not None or not known:
                continue
            if not any(abs(norm.epsilon - v) <= 1e-5 * v for v in known.values()):
                said = ", ".join(f"{k} is {v:g}" for k, v in known.items())
                yield f"runs epsilon {norm.epsilon:g} where {said}"


class _LateError(BaseException):
    """One entry took too long. No handler for the errors of model code catches it."""


def _late(_number: int, _frame: Any) -> None:
    raise _LateError


def main() -> None:
    """Rows as JSON lines, for entries that come as JSON lines."""
    torch.set_num_threads(1)
    upstream.transformers()
    for line in sys.stdin:
        task, model_type, class_name = json.loads(line)
        signal.signal(signal.SIGPROF, _late)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        print(json.dumps(examine(task, model_type, class_name)), flush=True)


if __name__ == "__main__":
    main()
