"""One conformance run: which candidate in which dtypes, against which reference, on which tokens."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace

from blockaudit.graph.witness import testify_candidate
from blockaudit.records.bound import BoundManifest
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.conformance import MODES, Conformance, Depth, Mode, SiteResult
from blockaudit.records.contract import Executed, Testimony
from blockaudit.records.sites import order
from blockaudit.trace import testimony, tolerance
from blockaudit.trace.against import Others
from blockaudit.trace.beside import Beside, Progress
from blockaudit.trace.candidate import Candidate
from blockaudit.trace.candidates import Candidates
from blockaudit.trace.diagnose import Diagnoser
from blockaudit.trace.diagnose import merged as diagnosed
from blockaudit.trace.held import Held
from blockaudit.trace.identify.solved import Solved
from blockaudit.trace.judge import NAMES, Judge
from blockaudit.trace.measure import CASTS, Measurer, merged
from blockaudit.trace.models import Inputs
from blockaudit.trace.recorded import Recorded
from blockaudit.trace.recorder import Recorder, check
from blockaudit.trace.reference import Full, Wrapper
from blockaudit.trace.request import Request, batches_of, device_of, dtype_of
from blockaudit.trace.run import Make, Observer, Pass
from blockaudit.trace.running import Runnable
from blockaudit.trace.search import Clues
from blockaudit.trace.weights import Weights

_ROOM = 64  # layers that a trace's header has room for at once


@dataclass(frozen=True)
class Outcome:
    """The run, and the candidate in float32 and in the release dtype. `unwritten` says why there is no --trace-out."""

    conformance: Conformance
    candidates: tuple[Runnable, ...]
    bound: BoundManifest
    unwritten: str = ""

    def executed(self, bound: BoundManifest) -> Executed | None:
        """What the operators of the candidate say of the contract's fields; None of a recorded one, which has none."""
        read = [c for c in self.candidates if isinstance(c, Candidate)]
        if not read:
            return None
        exact = next(c for c in read if c.model.dtype == torch.float32)
        low = read[-1]
        found = testify_candidate(bound, low.recording, exact.recording, None)
        found = testimony.heard(found, self.conformance, self.bound)
        if low.recording is not exact.recording:
            return found
        # In float32 alone no cast is to be seen.
        said = {f: s for f, s in found.testimony.statements.items() if not f.endswith((".work_dtype", ".cast_order"))}
        return replace(found, testimony=Testimony("executed", said))

    def measured(self) -> Testimony:
        """What the numbers say of the contract's fields: what they were solved to, and the edits that were verified."""
        return testimony.measured(self.conformance, self.bound)


def run(
    checkpoint: Checkpoint, config: dict[str, Any], bound: BoundManifest, asked: Request, progress: Progress | None
) -> Outcome:
    """Compare a candidate with the reference, in float32 to localise and in the release dtype to judge.

    Raises RequestError where it cannot be run at all.
    """
    check(asked.trace_out)
    device = device_of(asked.device)
    release = dtype_of(asked.dtype, checkpoint)
    policy = asked.policy or tolerance.load(None)
    weights = Weights(checkpoint, device)
    depth, reason = _depth(bound)
    results: list[SiteResult] = []
    candidates: list[Runnable] = []
    making = Candidates(checkpoint, config, bound, asked, device, weights, depth == "full")
    others = None if asked.reference == "decoder" else Others(making, asked.reference)
    unwritten = ""
    diagnosers: list[Diagnoser] = []
    measured: dict[tuple[str, int | None], list[Solved]] = {}
    beside = Beside(policy is not tolerance.DEFAULT, asked.algebra, asked.repro, progress)
    judged: list[SiteResult] = []
    try:
        batches = making.batches(batches_of(asked, bound, config))
        if others is not None:
            batches = others.batches(batches, asked.tokens is not None or making.file is not None)
        for one in making.each(release, batches[0]):
            candidates.append(one)
            judge = Judge(one.dtype if others is None else others.judged_in(one), policy)
            make = _maker(weights, one.dtype, device, depth)
            modes = making.modes(asked.modes, one.recorded)
            if others is None:
                work = Pass(one, bound, weights, judge, modes, make, asked.layers)
            else:
                work = others.watch(one, judge, others.modes(modes), make, release)
            measurer = Measurer(work, len(candidates) > 1)
            before = [(f.edit, f.layer) for d in diagnosers for f in d.found]
            diagnoser = Diagnoser(work, Clues(_held(one, bound, weights), measurer.solved, before))
            noted, short = beside.watch(work, (measured, measurer.solved), last=one.recorded or one.dtype == release)
            observers: list[Observer] = [measurer.look, diagnoser.layer, *noted]
            for i, inputs in enumerate(batches if _masked(one) else batches[:1]):
                writes = i == 0 and asked.trace_out is not None and (one.recorded or one.dtype == release)
                with torch.no_grad(), _recorder(asked, one, inputs, writes) as recorder:
                    every = [*observers, *([recorder.look] if recorder else [])]
                    work.batch(inputs, every if i == 0 else [diagnoser.layer, *short], probe=i == 0)
                unwritten = recorder.fault if recorder else unwritten
            judged += judge.results
            results += _worst(judge.results)
            diagnosers.append(diagnoser)
            measured = _casts(measured, measurer.solved) if len(candidates) > 1 else measurer.solved
    finally:
        weights.close()
        making.close()
        if others is not None:
            others.close()
    last = candidates[-1]
    absent = last.absent(batches[0]) if isinstance(last, Recorded) else []
    strange = last.strange(batches[0]) if isinstance(last, Recorded) else []
    results.sort(key=lambda r: (r.dtype != "float32", MODES.index(r.mode), order(r.site)))
    diagnosis = diagnosed(f for d in diagnosers for f in d.found)
    conformance = Conformance(
        device=str(device),
        depth="full" if others is not None else depth,
        dtype=NAMES[last.dtype],
        mode=asked.mode,
        batch=batches[0]["input_ids"].shape[0],
        seq_len=batches[0]["input_ids"].shape[1],
        seed=asked.seed,
        candidate=candidates[0].label,
        sites=tuple(results),
        first=first_divergence(results),
        identified=tuple(merged(measured, bound.fields)),
        diagnosis=tuple(diagnosis),
        explained=_explained(diagnosers, results),
        missing=tuple(dict.fromkeys([*absent, *(s for d in diagnosers for s in d.missing)])),
        unexpected=tuple(dict.fromkeys([*(s for d in diagnosers for s in d.unexpected), *strange])),
        silent=(*making.silent(asked.modes, last.recorded), *(others.silent(asked.modes) if others else ())),
        recorded=last.recorded,
        touched=tuple(sorted({name for c in candidates if isinstance(c, Candidate) for name in c.model.touched})),
        depth_reason=others.told if others is not None else reason,
        policy=tolerance.described(policy),
        layers=f"{asked.layers.start}:{asked.layers.stop}" if asked.layers is not None else "",
    )
    conformance, unsaved = beside.settle(
        conformance, asked.modes, judged, checkpoint.source, stacks=[s.name for s in bound.spans if not s.ignored],
        unread=_unread(last), padding=_unpadded(asked, last),
    )  # fmt: skip
    return Outcome(conformance, tuple(candidates), bound, unwritten or unsaved)


def _masked(one: Runnable) -> bool:
    """Whether a candidate can be told which rows are padding."""
    return not isinstance(one, Candidate) or "attention_mask" in one.model.takes


def _unread(one: Runnable) -> Sequence[str]:
    """What of a candidate's operators could not be read."""
    return one.program.unread if isinstance(one, Candidate) else ()


def _unpadded(asked: Request, one: Runnable) -> str:
    """Why no padded rows were run; empty where they were."""
    if not _masked(one):
        return "the candidate takes no attention mask"
    mask = asked.tokens.get("attention_mask") if asked.tokens is not None else None
    given = asked.tokens is not None and (mask is None or bool(mask.all()))
    return "the tokens that were given have none, and were run alone" if given else ""


@contextmanager
def _recorder(asked: Request, one: Runnable, inputs: Inputs, writes: bool) -> Generator[Recorder | None]:
    """The trace that is written of a batch, where one is."""
    if asked.trace_out is None or not writes:
        yield None
        return
    recorder = Recorder(asked.trace_out, inputs, len(one.stacks) > 1, _ROOM, asked.manifest_sha256, NAMES[one.dtype])
    try:
        yield recorder
    except BaseException:
        recorder.discard()
        raise
    recorder.commit()


def _explained(diagnosers: Sequence[Diagnoser], results: Sequence[SiteResult]) -> bool | None:
    """Whether edits explain all that fails; None where nothing does."""
    if all(r.passed is not False for r in results):
        return None
    return any(f.group for d in diagnosers for f in d.found) and not any(d.unexplained for d in diagnosers)


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


def _held(one: Runnable, bound: BoundManifest, weights: Weights) -> Held | None:
    """The parameters of a candidate whose operators are run."""
    if not isinstance(one, Candidate):
        return None
    return Held(bound, weights, one.dtype, one.model.weight, one.recording.constants)


def _casts(
    before: dict[tuple[str, int | None], list[Solved]], low: dict[tuple[str, int | None], list[Solved]]
) -> dict[tuple[str, int | None], list[Solved]]:
    """Fields solved in float32, with those that only a low dtype shows put in their place."""
    return {key: [s for s in before.get(key, []) if s.field not in CASTS] + found for key, found in low.items()}


def _maker(weights: Weights, held: torch.dtype, device: torch.device, depth: Depth) -> Make:
    if depth == "wrapper":
        return lambda bound, dtype, run: Wrapper(run)
    return lambda bound, dtype, run: Full(bound, weights.source(held, dtype), dtype, device)


def _depth(bound: BoundManifest) -> tuple[Depth, str]:
    """How deep the reference is, and why it is no full one."""
    from blockaudit.reference.decoder import FullReference

    reason = FullReference.refusal(bound)
    return ("wrapper" if reason else "full"), reason
