"""The candidate that was asked for, made in each dtype that a run needs: a class, a user's own, or a recorded trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from blockaudit.errors import RequestError
from blockaudit.graph import candidate as user
from blockaudit.records.bound import BoundManifest
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.conformance import Mode
from blockaudit.trace import models
from blockaudit.trace.candidate import Candidate
from blockaudit.trace.files import sources
from blockaudit.trace.files.read import TraceFile
from blockaudit.trace.files.recorded import Recorded
from blockaudit.trace.judge import NAMES
from blockaudit.trace.models import Inputs
from blockaudit.trace.reference import Full
from blockaudit.trace.request import Request, check_ids
from blockaudit.trace.running import Runnable
from blockaudit.trace.weights import Weights

SUFFIX = ".safetensors"


@dataclass
class Candidates:
    """Makes `asked.candidate`. `full`: whether the manifest has a full reference."""

    checkpoint: Checkpoint
    config: dict[str, Any]
    bound: BoundManifest
    asked: Request
    device: torch.device
    weights: Weights
    full: bool

    @cached_property
    def file(self) -> TraceFile | None:
        """The trace that is the candidate. Raises RequestError."""
        return TraceFile.open(self.asked.candidate) if self.asked.candidate.endswith(SUFFIX) else None

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def batches(self, usual: list[Inputs]) -> list[Inputs]:
        """What is run: the usual batches, of a trace file the tokens that it was recorded on. Raises RequestError."""
        if self.file is None:
            return usual
        return [self.tokens_of(self.file, usual[0], self.asked.tokens is not None)]

    def tokens_of(self, file: TraceFile, usual: Inputs, given: bool) -> Inputs:
        """The tokens that a trace was recorded on. Raises RequestError where they, or its sizes, do not fit."""
        found = sources.tokens_of(file, usual, given)
        check_ids(found, file.path, self.bound, self.config)
        sources.check(file, file.path, self.bound, found)
        return found

    def each(self, release: torch.dtype, first: Inputs) -> Iterator[Runnable]:
        """The candidate in float32, which localises, and in the release dtype; of a trace in the dtype that it has."""
        exact = self.one(torch.float32, first, None)
        yield exact
        if self.file is None and release != torch.float32:
            low = self.one(release, first, exact if isinstance(exact, Candidate) else None)
            if not low.recorded or low.dtype != exact.dtype:
                yield low

    def one(self, dtype: torch.dtype, first: Inputs, like: Candidate | None) -> Runnable:
        """The candidate in one dtype, to be run on `first`. like: the same in float32. Raises RequestError."""
        if self.file is not None:
            return self.of_file(self.file)
        made = self._made(dtype)
        return (
            Candidate(made, self.bound, self.device, like)
            if isinstance(made, models.Model)
            else self._traced(made, first)
        )

    def of_class(self, dtype: torch.dtype) -> Candidate:
        """The class that config.json names, in one dtype. Raises RequestError."""
        model = models.hugging_face(self.checkpoint, self.config, dtype, self.weights, self.asked.code)
        return Candidate(model, self.bound, self.device)

    def of_file(self, file: TraceFile) -> Recorded:
        """A recorded trace, in the dtype that it has."""

        def values(inputs: Inputs) -> sources.Values:
            del inputs
            return file

        return self._recorded(file.path, sources.dtype_of(file, file.metadata.dtype_policy), values)

    def modes(self, asked: frozenset[Mode], recorded: bool) -> frozenset[Mode]:
        """The modes that can be had of those asked for. Raises RequestError where none can."""
        found = {mode: why for mode, why in self._without(recorded) if mode in asked}
        if not asked - found.keys():
            raise RequestError(f"--candidate {self.asked.candidate}: {next(iter(found.values()))}")
        return asked - found.keys()

    def silent(self, asked: frozenset[Mode], recorded: bool) -> Iterator[str]:
        """What is not compared, and what a reader should know of a recorded trace."""
        for mode, why in self._without(recorded):
            if mode in asked:
                yield f"{mode}: {why}"
        if self.file is None:
            return
        metadata, asked_dtype = self.file.metadata, self.asked.dtype
        judged = NAMES[sources.dtype_of(self.file, metadata.dtype_policy)]
        if asked_dtype not in ("checkpoint", judged):
            yield f"--dtype {asked_dtype}: the trace is of a run in {judged}, and is judged so"
        ours = self.asked.manifest_sha256
        if metadata.manifest_sha256 and ours and metadata.manifest_sha256 != ours:
            yield "the trace was recorded for another manifest than the one that it is held to (their hashes differ)"

    def _without(self, recorded: bool) -> Iterator[tuple[Mode, str]]:
        """Modes that a recorded trace cannot be compared in, and why."""
        if not recorded:
            return
        yield "layer", "a recorded trace cannot be run on the reference's states"
        run = "" if self.file is None else self.file.metadata.mode
        if not self.full:
            yield "end-to-end", "the manifest has no full reference, and a recorded trace cannot lend its branches"
        elif run not in ("", "end-to-end"):
            yield "end-to-end", f"the trace was recorded in mode {run}"

    def _made(self, dtype: torch.dtype) -> Any:
        """A `Model`, or a user's object with `trace`."""
        asked = self.asked
        if asked.candidate == "hf":
            return models.hugging_face(self.checkpoint, self.config, dtype, self.weights, asked.code)
        made = user.made_by(asked.candidate, self.checkpoint.source, dtype, str(self.device))
        if isinstance(made, torch.nn.Module):
            return models.own(made, asked.candidate, dtype, self.device)
        return made

    def _traced(self, made: Any, first: Inputs) -> Recorded:
        """A user's object, asked for the first batch already: its values tell its dtype."""
        label = self.asked.candidate
        kept = {id(first): self._asked(made, first)}

        def values(inputs: Inputs) -> sources.Values:
            if id(inputs) not in kept:
                kept.clear()
                kept[id(inputs)] = self._asked(made, inputs)
            return kept[id(inputs)]

        return self._recorded(label, sources.dtype_of(kept[id(first)], ""), values)

    def _asked(self, made: Any, inputs: Inputs) -> sources.Held:
        several = sum(not s.ignored for s in self.bound.spans) > 1
        given = {k: v for k, v in inputs.items() if several or not k.startswith("decoder_")}
        found = sources.asked(made, self.asked.candidate, given)
        sources.check(found, f"--candidate {self.asked.candidate}", self.bound, given)
        return found

    def _recorded(self, label: str, dtype: torch.dtype, values: Callable[[Inputs], sources.Values]) -> Recorded:
        ours = None
        if self.full:
            weights = self.weights
            ours = Full(self.bound, weights.source(dtype, torch.float32), torch.float32, self.device)
        return Recorded(label, dtype, self.bound, self.device, values, ours)
