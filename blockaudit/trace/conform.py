"""One conformance run: which candidate in which dtypes, against which reference, on which tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from blockaudit.errors import RequestError
from blockaudit.graph import candidate as user
from blockaudit.graph.witness import testify_candidate
from blockaudit.records.bound import BoundManifest
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.conformance import MODES, Conformance, Depth, Mode, SiteResult
from blockaudit.records.contract import Executed, Statement, Testimony
from blockaudit.records.sites import order
from blockaudit.records.tolerance import TolerancePolicy
from blockaudit.trace import models, tokens, tolerance
from blockaudit.trace.candidate import Candidate
from blockaudit.trace.diagnose import Diagnoser
from blockaudit.trace.diagnose import merged as diagnosed
from blockaudit.trace.edits import Edit, proposed
from blockaudit.trace.identify.solved import Solved
from blockaudit.trace.judge import NAMES, Judge
from blockaudit.trace.measure import CASTS, Measurer, merged
from blockaudit.trace.models import Inputs, Model
from blockaudit.trace.reference import Full, Wrapper
from blockaudit.trace.run import Make, Observer, Pass
from blockaudit.trace.scene import Seen
from blockaudit.trace.weights import DTYPES, Weights

# Tokens of the padded rows that are run beside the batch: a prime, as no dimension of a model is.
_SHORT = 7
_LENGTH = 128
_BEHIND = 2
Progress = Callable[[str, int, int], None]
_BY_NAME = {name: dtype for dtype, name in NAMES.items()}


@dataclass(frozen=True)
class Request:
    """What was asked for. `layers` is a range of layer numbers, `tokens` token ids [B, S] instead of random ones."""

    candidate: str = "hf"
    reference: str = "decoder"
    mode: str = "all"
    layers: range | None = None
    device: str = "auto"
    dtype: str = "checkpoint"
    batch: int = 2
    seq_len: int | None = None  # None: 128, or as many as the model has positions
    seed: int = 0
    tokens: dict[str, Tensor] | None = None
    policy: TolerancePolicy | None = None
    code: str | None = None

    @property
    def modes(self) -> frozenset[Mode]:
        if self.mode == "all":
            return frozenset(MODES)
        if self.mode not in MODES:
            raise RequestError(f"unknown --mode {self.mode!r}: expected {', '.join(MODES)} or all")
        return frozenset({self.mode})  # pyright: ignore[reportArgumentType] - it is one of them


@dataclass(frozen=True)
class Outcome:
    """The run, and the recordings of the candidate that the executed witness reads: (release dtype, float32)."""

    conformance: Conformance
    candidates: tuple[Candidate, ...]

    def executed(self, bound: BoundManifest) -> Executed:
        """What the operators of the candidate say of the contract's fields."""
        exact = next(c for c in self.candidates if c.model.dtype == torch.float32)
        low = self.candidates[-1]
        found = testify_candidate(bound, low.recording, exact.recording, None)
        if low.recording is not exact.recording:
            return found
        # In float32 alone no cast is to be seen.
        said = {f: s for f, s in found.testimony.statements.items() if not f.endswith((".work_dtype", ".cast_order"))}
        return replace(found, testimony=Testimony("executed", said))

    def measured(self) -> Testimony:
        """What the numbers say of the contract's fields: what they were solved to, and the edits that were verified."""
        run, said = self.conformance, dict[str, Statement]()
        for one in run.identified:
            if one.value is not None and one.field not in said:
                said[one.field] = Statement(one.value, one.evidence, "numbers", layers=one.layers)
        for one in run.diagnosis:
            if one.group:
                evidence = f"the reference with this value agrees with the candidate ({one.explains:.2%} of the error)"
                said[one.field] = Statement(one.value, evidence, "numbers", layers=one.layers)
        return Testimony("measured", said)


def run(
    checkpoint: Checkpoint, config: dict[str, Any], bound: BoundManifest, asked: Request, progress: Progress | None
) -> Outcome:
    """Compare a candidate with the reference, in float32 to localise and in the release dtype to judge.

    Raises RequestError where it cannot be run at all.
    """
    device = _device(asked.device)
    release = _dtype(asked.dtype, checkpoint)
    policy = asked.policy or tolerance.load(None)
    weights = Weights(checkpoint, device)
    depth, reason = _depth(bound)
    results: list[SiteResult] = []
    candidates: list[Candidate] = []
    batches = _batches(asked, bound, config)
    diagnosers: list[Diagnoser] = []
    measured: dict[tuple[str, int | None], list[Solved]] = {}
    try:
        for dtype in dict.fromkeys((torch.float32, release)):
            model = _model(checkpoint, config, asked, dtype, device, weights)
            one = Candidate(model, bound, device, candidates[0] if candidates else None)
            candidates.append(one)
            judge = Judge(dtype, policy)
            make = _maker(weights, dtype, device, depth)
            work = Pass(one, bound, weights, judge, asked.modes, make, asked.layers)
            diagnoser = Diagnoser(work, partial(_proposed, model))
            measurer = Measurer(work, dtype != torch.float32)
            observers: list[Observer] = [diagnoser.layer, measurer.look]
            for i, inputs in enumerate(batches):
                with torch.no_grad():
                    work.batch(inputs, observers if i == 0 else observers[:1], probe=i == 0)
            results += _worst(judge.results)
            diagnosers.append(diagnoser)
            measured = measurer.solved if dtype == torch.float32 else _casts(measured, measurer.solved)
    finally:
        weights.close()
    results.sort(key=lambda r: (r.dtype != "float32", MODES.index(r.mode), order(r.site)))
    diagnosis = diagnosed(f for d in diagnosers for f in d.found)
    conformance = Conformance(
        device=str(device),
        depth=depth,
        dtype=NAMES[release],
        mode=asked.mode,
        batch=batches[0]["input_ids"].shape[0],
        seq_len=batches[0]["input_ids"].shape[1],
        seed=asked.seed,
        candidate=candidates[0].model.label,
        sites=tuple(results),
        first=first_divergence(results),
        identified=tuple(merged(measured, bound.fields)),
        diagnosis=tuple(diagnosis),
        explained=not any(d.unexplained for d in diagnosers) if any(r.passed is False for r in results) else None,
        missing=tuple(dict.fromkeys(s for d in diagnosers for s in d.missing)),
        unexpected=tuple(dict.fromkeys(s for d in diagnosers for s in d.unexpected)),
        depth_reason=reason,
        policy=tolerance.described(policy),
        layers=f"{asked.layers.start}:{asked.layers.stop}" if asked.layers is not None else "",
    )
    return Outcome(conformance, tuple(candidates))


def first_divergence(results: Sequence[SiteResult]) -> SiteResult | None:
    """The first failing site as executed: where nothing accumulates first, and in float32 before the release dtype."""
    failed = [r for r in results if r.passed is False]
    return min(failed, key=lambda r: (MODES.index(r.mode), r.dtype != "float32", order(r.site)), default=None)


def _worst(results: Sequence[SiteResult]) -> Iterator[SiteResult]:
    """One row a site and mode: the worst of its batches and probes."""
    groups: dict[tuple[str, Mode], list[SiteResult]] = {}
    for result in results:
        groups.setdefault((result.site, result.mode), []).append(result)

    def strain(r: SiteResult) -> tuple[bool, float]:
        return r.passed is False, r.observed / r.tolerance if r.tolerance else r.observed

    for rows in groups.values():
        yield max(rows, key=strain)


def _proposed(model: Model, seen: Seen) -> list[Edit]:
    if seen.block is None or seen.segment.layer is None:
        return []
    return proposed(seen.block, seen.segment.layer, model.key)


def _casts(
    before: dict[tuple[str, int | None], list[Solved]], low: dict[tuple[str, int | None], list[Solved]]
) -> dict[tuple[str, int | None], list[Solved]]:
    """Fields solved in float32, with those that only a low dtype shows put in their place."""
    return {key: [s for s in before.get(key, []) if s.field not in CASTS] + found for key, found in low.items()}


def _maker(weights: Weights, held: torch.dtype, device: torch.device, depth: Depth) -> Make:
    if depth == "wrapper":
        return lambda bound, dtype, run: Wrapper(run)
    return lambda bound, dtype, run: Full(bound, lambda key: weights.tensor(key, held).to(dtype), dtype, device)


def _depth(bound: BoundManifest) -> tuple[Depth, str]:
    """How deep the reference is, and why it is no full one."""
    from blockaudit.reference.decoder import FullReference

    reason = FullReference.refusal(bound)
    return ("wrapper" if reason else "full"), reason


def _model(
    checkpoint: Checkpoint,
    config: dict[str, Any],
    asked: Request,
    dtype: torch.dtype,
    device: torch.device,
    weights: Weights,
) -> Model:
    if asked.candidate == "hf":
        return models.hugging_face(checkpoint, config, dtype, weights, asked.code)
    made = user.made_by(asked.candidate, checkpoint.source, dtype, str(device))
    return models.own(made, asked.candidate, dtype, device)


def _device(name: str) -> torch.device:
    """Raises RequestError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise RequestError(f"--device {name}: not available here: {str(error).splitlines()[0]}") from error
    return device


def _dtype(name: str, checkpoint: Checkpoint) -> torch.dtype:
    """The release dtype: the one that most of the checkpoint's elements have. Raises RequestError."""
    if name in _BY_NAME and name != "float64":
        return _BY_NAME[name]
    if name != "checkpoint":
        raise RequestError(f"unknown --dtype {name!r}: expected checkpoint, float32, bfloat16 or float16")
    counts: dict[str, int] = {}
    for header in checkpoint.tensors.values():
        counts[header.dtype] = counts.get(header.dtype, 0) + header.elements
    floats = {k: v for k, v in counts.items() if k in ("F32", "BF16", "F16", "F64")}
    most = max(floats, key=lambda k: floats[k], default="F32")
    return torch.float32 if most == "F64" else DTYPES[most]


def _batches(asked: Request, bound: BoundManifest, config: dict[str, Any]) -> Sequence[Inputs]:
    """The tokens asked for, and beside them a short padded batch of another length."""
    if asked.tokens is not None:
        return [asked.tokens]
    vocab = _vocabulary(bound, config)
    length = _length(asked.seq_len, config)
    if asked.batch < 1 or length < 1:
        raise RequestError(f"--batch {asked.batch} --seq-len {length}: both must be at least 1")
    decoder = tokens.tokens(vocab, asked.batch, length, asked.seed + 1)
    main = dataclasses.replace(
        tokens.whole(tokens.tokens(vocab, asked.batch, length, asked.seed)), decoder_input_ids=decoder
    )
    return [main.tensors(), _padded(vocab, asked.seed + 2, _pad(config))]


def _padded(vocab: int, seed: int, pad: int) -> Inputs:
    """Two short rows, one padded on the left and one on the right."""
    left = tokens.padded(vocab, 2, _SHORT, seed, side="left", pad=pad)
    right = tokens.padded(vocab, 2, _SHORT, seed, side="right", pad=pad)
    ids = torch.stack([left.input_ids[1], right.input_ids[1]])
    mask = torch.stack([left.attention_mask[1], right.attention_mask[1]])
    return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": tokens.tokens(vocab, 2, _SHORT, seed + 1)}


def _length(asked: int | None, config: dict[str, Any]) -> int:
    """Tokens in a sequence. Raises RequestError for more than the model has positions."""
    names = ("max_position_embeddings", "n_positions", "n_ctx", "max_target_positions")
    sizes = [v for n in names if isinstance(v := config.get(n), int) and v > 0]
    # Some tables begin behind the padding's position (RoBERTa, OPT).
    most = min(sizes) - _BEHIND if sizes else None
    if asked is None:
        return _LENGTH if most is None else max(1, min(_LENGTH, most))
    if sizes and asked > min(sizes):
        raise RequestError(f"--seq-len {asked}: the model has {min(sizes)} positions (config.json)")
    return asked


def _pad(config: dict[str, Any]) -> int:
    pad = config.get("pad_token_id")
    return pad if isinstance(pad, int) and pad >= 0 else 0


def _vocabulary(bound: BoundManifest, config: dict[str, Any]) -> int:
    """How many token ids there are. Raises RequestError."""
    dim = bound.dims.get("vocab")
    size = dim.value if dim is not None and dim.known else config.get("vocab_size")
    if not isinstance(size, int) or size < 1:
        raise RequestError(
            "config.json: vocab_size: expected a positive number, to draw tokens from; give --tokens FILE"
        )
    return size
