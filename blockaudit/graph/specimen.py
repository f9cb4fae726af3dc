"""One entry of the census: build it tiny, record it, read it, rebuild it. Run by `census` in a process of its own."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch

from blockaudit.graph import live, tiny
from blockaudit.graph.norms import Norm
from blockaudit.graph.rebuild import Verdict, rebuild
from blockaudit.graph.record import Recording
from blockaudit.graph.stream import Add, Branch, Reader, Stream

# Round-off of FP32 over a few layers, relative to the largest logit.
FP32 = 1e-4
SECONDS = 20
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
        model, config, recording = build(model_type, class_name)
    except tiny.NotBuilt as error:
        return {**row, "verdict": "not run", "reason": str(error)}
    except _LateError:
        return {**row, "verdict": "not run", "reason": f"more than {SECONDS} s"}
    try:
        found = _read(model, config, recording, model_type, class_name)
        return {**row, **found, "seconds": round(time.monotonic() - began, 1)}
    except _LateError:
        return {**row, "verdict": "not read", "reason": f"reader: more than {SECONDS} s"}
    except Exception as error:  # a fault of the reader is a row, not the end of the census
        return {**row, "verdict": "not read", "reason": f"reader: {_first(error)}"}


def build(model_type: str, class_name: str, changed: Mapping[str, Any] | None = None) -> tuple[Any, Any, Recording]:
    """The tiny model, its config and its recording, by the first way of filling its config that works."""
    import transformers

    reasons: list[str] = []
    for make in tiny.configs(model_type, changed):
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
    run = live.values(recording, fresh.values(), live.weights(recording))
    drift = [
        k for k, end in {**recording.hidden, "logits": recording.logits}.items() if end and _off(run[end], real[k])
    ]
    reader = Reader(recording)
    streams = {k: reader.stream(end) for k, end in recording.hidden.items()}
    verdicts = {k: rebuild(recording, s, recording.hidden[k], run) for k, s in streams.items()}
    row: dict[str, Any] = {
        "equations": [f"{k}: {e}" for k, s in streams.items() for e in _equations(s)],
        "oddities": [f"{k}: {o}" for k, v in verdicts.items() for o in v.oddities],
    }
    bad = [(k, v) for k, v in verdicts.items() if v.kind != "confirmed"]
    if bad:
        kinds = {v.kind for _, v in bad}
        kind = "contradicted" if "contradicted" in kinds else "not read"
        return {**row, "verdict": kind, "reason": "; ".join(_said(k, v) for k, v in bad)}
    if not verdicts:
        return {**row, "verdict": "not read", "reason": "no value that leaves a stack was found"}
    if drift:
        return {**row, "verdict": "not read", "reason": f"the recorded operators do not give {', '.join(drift)} again"}
    wrong = _logits(recording, run, verdicts, real)
    if wrong:
        return {**row, "verdict": "contradicted", "reason": wrong}
    followed = _followed(model_type, class_name, config)
    row["norms"] = [f"{k}: {e}" for k, s in streams.items() for e in _norms(s, followed)]
    return {**row, "verdict": "confirmed", "reason": ""}


def _logits(recording: Recording, run: Mapping[Any, Any], verdicts: dict[str, Verdict], real: dict[str, Any]) -> str:
    """The model's own logits in FP32 against those of the rebuilt state."""
    end, logits = recording.hidden.get("decoder"), recording.logits
    if end is None or logits is None:
        return ""
    graph = Reader(recording).graph
    region = graph.between(end, logits)
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
    return f"{type(error).__name__}: {' '.join(lines)[:110]}"


# -- how a stack is written ----------------------------------------------------------------------------------------


def _equations(stream: Stream) -> list[str]:
    """The distinct adds of a stack in order, `x3` after one that comes again."""
    lines = [_add(a, stream.normalised_shortcut) for a in stream.adds]
    start = f"h = {_wrap(stream.embed_norm, _factor(stream.embedding_scale) + 'embed')}"
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
    inside = f"{_NAMES.get(branch.kind, branch.kind)}({_wrap(branch.norm_in, 'h')}{memory})"
    return _factor(branch.scale) + _wrap(branch.norm_out, inside)


def _factor(scale: float | None) -> str:
    return "" if scale is None or scale == 1.0 else f"{scale:.6g} * "


def _wrap(norm: Norm | None, inside: str) -> str:
    return inside if norm is None else f"{_SHORT.get(norm.family, norm.family)}({inside})"


def _sites(stream: Stream) -> list[Norm]:
    found = [stream.embed_norm, stream.final_norm]
    found += [n for a in stream.adds for b in a.branches for n in (b.norm_in, b.norm_out)]
    found += [a.norm_post for a in stream.adds]
    return [n for n in found if n is not None]


def _norms(stream: Stream, followed: Mapping[str, str]) -> list[str]:
    """Each distinct norm of the stream with its epsilon and the config key that it follows."""
    lines: list[str] = []
    for norm in _sites(stream):
        gain = "no weight" if norm.scale == "none" else "1 + weight" if norm.scale_offset else "weight"
        epsilon = "no epsilon" if norm.epsilon is None else f"eps {norm.epsilon:g}"
        key = followed.get(norm.weight, "no key")
        lines.append(f"{norm.family}, {gain}{', bias' if norm.bias else ''}, {epsilon} ({key})")
    return list(dict.fromkeys(lines))


def _followed(model_type: str, class_name: str, config: Any) -> dict[str, str]:
    """By norm weight, the config key that its epsilon took when every epsilon key was given a value of its own."""
    changed = {key: 1e-4 * (i + 2) for i, key in enumerate(tiny.epsilons(config))}
    if not changed:
        return {}
    try:
        _, _, recording = build(model_type, class_name, changed)
    except tiny.NotBuilt:
        return {}
    back = {f"{v:.5g}": k for k, v in changed.items()}
    reader = Reader(recording)
    found = [n for end in recording.hidden.values() for n in _sites(reader.stream(end)) if n.epsilon is not None]
    return {n.weight: back.get(f"{n.epsilon:.5g}", "no key") for n in found}


class _LateError(BaseException):
    """One entry took too long. No handler for the errors of model code catches it."""


def _late(_number: int, _frame: Any) -> None:
    raise _LateError


def main() -> None:
    """Rows as JSON lines, for entries given as JSON."""
    torch.set_num_threads(1)
    import transformers

    transformers.logging.set_verbosity_error()
    for task, model_type, class_name in json.loads(sys.argv[1]):
        signal.signal(signal.SIGALRM, _late)
        signal.alarm(SECONDS)
        print(json.dumps(examine(task, model_type, class_name)), flush=True)


if __name__ == "__main__":
    main()
