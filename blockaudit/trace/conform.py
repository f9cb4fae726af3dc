"""One conformance run: which candidate in which dtypes, against which reference, on which tokens."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace

from blockaudit.graph.candidate import CandidateRaised
from blockaudit.graph.record import RecordingError
from blockaudit.graph.witness import testify_candidate
from blockaudit.records.bound import BoundManifest
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.conformance import Conformance, Depth, SiteResult
from blockaudit.records.contract import Executed, Testimony
from blockaudit.records.sites import order
from blockaudit.reference.decoder import FullReference
from blockaudit.trace import testimony, tolerance
from blockaudit.trace.against import Others
from blockaudit.trace.beside import Beside, Progress
from blockaudit.trace.candidate import Candidate
from blockaudit.trace.candidates import Candidates
from blockaudit.trace.diagnosis.diagnose import Diagnoser
from blockaudit.trace.diagnosis.diagnose import merged as diagnosed
from blockaudit.trace.diagnosis.held import Held
from blockaudit.trace.diagnosis.search import Clues
from blockaudit.trace.files.recorded import Recorded
from blockaudit.trace.files.recorder import Recorder, check
from blockaudit.trace.gather import gather
from blockaudit.trace.judge import NAMES, Judge
from blockaudit.trace.measure import Measurer, merged
from blockaudit.trace.memory import ran_out
from blockaudit.trace.models import Inputs
from blockaudit.trace.ranks import RankLostError, Share, shared
from blockaudit.trace.reference import Full, Wrapper
from blockaudit.trace.request import Request, batches_of, device_of, dtype_of
from blockaudit.trace.results import Fields, casts, explained, first_divergence, ordered, worst
from blockaudit.trace.run import Make, Pass
from blockaudit.trace.running import Runnable
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

    Raises RequestError where it cannot be run at all. What the candidate's own code raises, a rank that is lost, and
    memory that runs out end the run: what was compared until then is told, and why there is no more.
    """
    check(asked.trace_out)
    with shared() as share, _Conductor(checkpoint, config, bound, asked, progress, share) as work:
        try:
            work.passes()
        except (RecordingError, CandidateRaised) as error:
            work.failure = f"the candidate raised: {error}"
            share.leave(work.failure)
        except RankLostError as error:
            work.unfinished = str(error)
        except (MemoryError, RuntimeError) as error:
            lack = ran_out(error)
            if lack is None:
                raise
            work.unfinished = lack
            share.leave(lack)
        return work.outcome()


class _Conductor:
    """One run: its passes, and what they found."""

    def __init__(
        self, checkpoint: Checkpoint, config: dict[str, Any], bound: BoundManifest, asked: Request,
        progress: Progress | None, share: Share,
    ) -> None:  # fmt: skip
        self.checkpoint, self.bound, self.asked, self.share = checkpoint, bound, asked, share
        self.device = share.device(device_of(asked.device))
        self.release = dtype_of(asked.dtype, checkpoint)
        self.policy = asked.policy or tolerance.load(None)
        self.weights = Weights(checkpoint, self.device)
        self.reason = FullReference.refusal(bound)
        self.depth: Depth = "wrapper" if self.reason else "full"
        self.making = Candidates(checkpoint, config, bound, asked, self.device, self.weights, self.depth == "full")
        self.others = None if asked.reference == "decoder" else Others(self.making, asked.reference)
        self.beside = Beside(self.policy is not tolerance.DEFAULT, asked.algebra, asked.repro, progress)
        self.batches: Sequence[Inputs] = batches_of(asked, bound, config)
        self.candidates: list[Runnable] = []
        self.diagnosers: list[Diagnoser] = []
        self.judged: list[SiteResult] = []
        self.results: list[SiteResult] = []
        self.measured: Fields = {}
        self.unwritten = self.failure = self.unfinished = ""

    def __enter__(self) -> _Conductor:
        return self

    def __exit__(self, *_: object) -> None:
        self.weights.close()
        self.making.close()
        if self.others is not None:
            self.others.close()

    def passes(self) -> None:
        """The candidate in every dtype that is judged."""
        self.batches = self.making.batches(list(self.batches))
        if self.others is not None:
            given = self.asked.tokens is not None or self.making.file is not None
            self.batches = self.others.batches(list(self.batches), given)
        for one in self.making.each(self.release, self.batches[0]):
            self.candidates.append(one)
            self._pass(one)

    def _pass(self, one: Runnable) -> None:
        work = self._work(one)
        work.share = self.share
        measurer = Measurer(work, len(self.candidates) > 1)
        before = [(f.edit, f.layer) for d in self.diagnosers for f in d.found]
        diagnoser = Diagnoser(work, Clues(_held(one, self.bound, self.weights), measurer.solved, before))
        last = one.recorded or one.dtype == self.release
        watch = self.beside.watch(work, (self.measured, measurer.solved), last)
        self.diagnosers.append(diagnoser)
        try:
            for i, inputs in enumerate(self.batches if _masked(one) else self.batches[:1]):
                writes = i == 0 and last and self.share.rank == 0
                with torch.no_grad(), _recorder(self.asked, one, inputs, writes) as recorder:
                    wrote = [recorder.look] if recorder else []
                    if i == 0:
                        own = [measurer.look, diagnoser.layer, *watch.main_own]
                        work.batch(inputs, [*watch.main, *wrote], own, probe=True)
                    else:
                        work.batch(inputs, watch.short, [diagnoser.layer, *watch.short_own])
                self.unwritten = recorder.fault if recorder else self.unwritten
            gather(self.share, work.judge, measurer, diagnoser, watch)
        finally:
            self.judged += work.judge.results
            self.results += worst(work.judge.results)
            several = len(self.candidates) > 1
            self.measured = casts(self.measured, measurer.solved) if several else measurer.solved

    def _work(self, one: Runnable) -> Pass:
        make = _maker(self.weights, one.dtype, self.device, self.depth)
        modes = self.making.modes(self.asked.modes, one.recorded)
        if self.others is None:
            judge = Judge(one.dtype, self.policy)
            return Pass(one, self.bound, self.weights, judge, modes, make, self.asked.layers)
        judge = Judge(self.others.judged_in(one), self.policy)
        return self.others.watch(one, judge, self.others.modes(modes), make, self.release)

    def outcome(self) -> Outcome:
        """Everything that was found."""
        bound, asked, others = self.bound, self.asked, self.others
        last = self.candidates[-1] if self.candidates else None
        whole = last if isinstance(last, Recorded) else None
        tokens = self.batches[0]["input_ids"]
        results = ordered(self.results)
        missing = [*(whole.absent(self.batches[0]) if whole else []), *(s for d in self.diagnosers for s in d.missing)]
        strange = [
            *(s for d in self.diagnosers for s in d.unexpected),
            *(whole.strange(self.batches[0]) if whole else []),
        ]
        recorded = last is not None and last.recorded
        touched = {name for c in self.candidates if isinstance(c, Candidate) for name in c.model.touched}
        places = {name: i for i, name in enumerate(bound.fields)}
        identified = merged(self.measured, bound.fields)
        found = Conformance(
            device=str(self.device),
            depth="full" if others is not None else self.depth,
            dtype=NAMES[last.dtype if last is not None else self.release],
            mode=asked.mode,
            batch=tokens.shape[0],
            seq_len=tokens.shape[1],
            seed=asked.seed,
            candidate=self.candidates[0].label if self.candidates else asked.candidate,
            sites=tuple(results),
            first=first_divergence(results),
            identified=tuple(sorted(identified, key=lambda i: places.get(i.field, len(places)))),
            diagnosis=tuple(diagnosed(f for d in self.diagnosers for f in d.found)),
            explained=explained(self.diagnosers, results),
            missing=tuple(sorted(dict.fromkeys(missing), key=order)),
            unexpected=tuple(dict.fromkeys(strange)),
            silent=(*self.making.silent(asked.modes, recorded), *(others.silent(asked.modes) if others else ())),
            recorded=recorded,
            touched=tuple(sorted(touched)),
            depth_reason=others.told if others is not None else self.reason,
            policy=tolerance.described(self.policy),
            layers=f"{asked.layers.start}:{asked.layers.stop}" if asked.layers is not None else "",
            failure=self.failure,
            unfinished=self.unfinished,
        )
        if last is None:
            return Outcome(found, (), bound, self.unwritten)
        found, unsaved = self.beside.settle(
            found, asked.modes, self.judged, self.checkpoint.source,
            stacks=[s.name for s in bound.spans if not s.ignored], unread=_unread(last), padding=_unpadded(asked, last),
        )  # fmt: skip
        return Outcome(found, tuple(self.candidates), bound, self.unwritten or unsaved)


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


def _held(one: Runnable, bound: BoundManifest, weights: Weights) -> Held | None:
    """The parameters of a candidate whose operators are run."""
    if not isinstance(one, Candidate):
        return None
    return Held(bound, weights, one.dtype, one.model.weight, one.recording.constants)


def _maker(weights: Weights, held: torch.dtype, device: torch.device, depth: Depth) -> Make:
    if depth == "wrapper":
        return lambda bound, dtype, run: Wrapper(run)
    return lambda bound, dtype, run: Full(bound, weights.source(held, dtype), dtype, device)
