"""One conformance run: which candidate in which dtypes, against which reference, on which tokens."""

from __future__ import annotations

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
from blockaudit.trace import models, tolerance
from blockaudit.trace.candidate import Candidate, Run
from blockaudit.trace.diagnose import Diagnoser
from blockaudit.trace.diagnose import merged as diagnosed
from blockaudit.trace.edits import Edit, proposed
from blockaudit.trace.identify.solved import Solved
from blockaudit.trace.judge import NAMES, Judge
from blockaudit.trace.measure import CASTS, Measurer, merged
from blockaudit.trace.models import Inputs, Model
from blockaudit.trace.reference import Full, Reference, Wrapper
from blockaudit.trace.run import Pass, Seen
from blockaudit.trace.weights import DTYPES, Weights

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
    seq_len: int = 128
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
        if low is not exact:
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
            one = Candidate(model, bound, device)
            candidates.append(one)
            judge = Judge(dtype, policy)
            make = _maker(bound, weights, dtype, device, depth)
            work = Pass(one, bound, weights, judge, asked.modes, make, asked.layers)
            diagnoser = Diagnoser(work, partial(_proposed, model))
            measurer = Measurer(work, dtype != torch.float32)
            for i, inputs in enumerate(batches):
                with torch.no_grad():
                    work.batch(inputs, partial(_observe, diagnoser, measurer if i == 0 else None))
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


def _observe(diagnoser: Diagnoser, measurer: Measurer | None, seen: Seen) -> None:
    diagnoser.layer(seen)
    if measurer is not None:
        measurer.look(seen)


def _proposed(model: Model, seen: Seen) -> list[Edit]:
    if seen.block is None or seen.segment.layer is None:
        return []
    return proposed(seen.block, seen.segment.layer, model.key)


def _casts(
    before: dict[tuple[str, int | None], list[Solved]], low: dict[tuple[str, int | None], list[Solved]]
) -> dict[tuple[str, int | None], list[Solved]]:
    """Fields solved in float32, with those that only a low dtype shows put in their place."""
    return {key: [s for s in before.get(key, []) if s.field not in CASTS] + found for key, found in low.items()}


def _maker(
    bound: BoundManifest, weights: Weights, held: torch.dtype, device: torch.device, depth: Depth
) -> Callable[[torch.dtype, Run], Reference]:
    if depth == "wrapper":
        return lambda dtype, run: Wrapper(run)
    return lambda dtype, run: Full(bound, lambda key: weights.tensor(key, held).to(dtype), dtype, device)


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
    if asked.batch < 1 or asked.seq_len < 1:
        raise RequestError(f"--batch {asked.batch} --seq-len {asked.seq_len}: both must be at least 1")
    made = [_tokens(vocab, asked.batch, asked.seq_len, asked.seed)]
    return made


def _tokens(vocab: int, batch: int, length: int, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab, (batch, length), generator=generator)
    decoder = torch.randint(0, vocab, (batch, length), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": decoder}


def _vocabulary(bound: BoundManifest, config: dict[str, Any]) -> int:
    """How many token ids there are. Raises RequestError."""
    dim = bound.dims.get("vocab")
    size = dim.value if dim is not None and dim.known else config.get("vocab_size")
    if not isinstance(size, int) or size < 1:
        raise RequestError(
            "config.json: vocab_size: expected a positive number, to draw tokens from; give --tokens FILE"
        )
    return size
