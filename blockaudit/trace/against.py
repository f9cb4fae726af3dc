"""Another run as the reference: the Hugging Face class, or a recorded trace, site by site beside the candidate.

Nothing of such a reference can be computed on the candidate's own inputs, so that `local` has nothing to compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from blockaudit.errors import RequestError
from blockaudit.records.conformance import Mode
from blockaudit.records.tolerance import EPS
from blockaudit.reference.assembly import Block
from blockaudit.trace.candidate import Segment, Sites
from blockaudit.trace.candidates import SUFFIX, Candidates
from blockaudit.trace.files.read import TraceFile
from blockaudit.trace.free import Free, counted, strayed_rows
from blockaudit.trace.judge import NAMES, Expected, Judge
from blockaudit.trace.models import Inputs
from blockaudit.trace.run import Compare, Make, Pass
from blockaudit.trace.running import Runnable, Running, named
from blockaudit.trace.scene import Scene


@dataclass
class Others:
    """The reference that is named in the manifest's place. Raises RequestError for a name that is none."""

    making: Candidates
    name: str

    def __post_init__(self) -> None:
        if self.name != "hf" and not self.name.endswith(SUFFIX):
            raise RequestError(f"unknown --reference {self.name!r}: expected decoder, hf or a trace ({SUFFIX})")

    @cached_property
    def file(self) -> TraceFile | None:
        return None if self.name == "hf" else TraceFile.open(self.name)

    @cached_property
    def exact(self) -> Runnable:
        """The class in float32, which is what is compared with; or the trace as it is."""
        if self.file is None:
            return self.making.of_class(torch.float32)
        return self.making.of_file(self.file)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def batches(self, usual: list[Inputs], given: bool) -> list[Inputs]:
        """What is run: of a trace the tokens that it was recorded on. Raises RequestError where `given` are others."""
        if self.file is None:
            return usual
        return [self.making.tokens_of(self.file, usual[0], given)]

    def modes(self, asked: frozenset[Mode]) -> frozenset[Mode]:
        """The modes that can be had of those asked for. Raises RequestError where none can."""
        gone = {mode: why for mode, why in self._without() if mode in asked}
        if not asked - gone.keys():
            raise RequestError(f"--reference {self.name}: {next(iter(gone.values()))}")
        return asked - gone.keys()

    def silent(self, asked: frozenset[Mode]) -> Iterator[str]:
        yield from (f"{mode}: {why}" for mode, why in self._without() if mode in asked)
        ours = self.making.asked.manifest_sha256
        if self.file is not None:
            yield "the policy's declared bounds judge: no noise can be measured on a recorded trace"
        if self.file is not None and self.file.metadata.manifest_sha256 not in ("", ours):
            yield "the reference was recorded for another manifest than the one named (their hashes differ)"

    def _without(self) -> Iterator[tuple[Mode, str]]:
        what = "class" if self.file is None else "recorded trace"
        yield "local", f"a reference that is a {what} is not run on the candidate's own inputs"
        if self.file is not None:
            yield "layer", "a recorded trace has no states that the candidate's layers were fed"

    @property
    def told(self) -> str:
        """What the report says of the reference."""
        return f"{self.exact.label}, in place of the manifest"

    def judged_in(self, one: Runnable) -> torch.dtype:
        """The coarser dtype of the two: a bfloat16 trace is no better for a float32 candidate."""
        if self.file is None:
            return one.dtype
        return max((one.dtype, self.exact.dtype), key=lambda dtype: EPS[NAMES[dtype]])

    def watch(self, one: Runnable, judge: Judge, modes: frozenset[Mode], make: Make, release: torch.dtype) -> Against:
        """The pass that compares one candidate with it: with a trace in the release dtype alone."""
        made = Against(one, self.making.bound, self.making.weights, judge, modes, make, self.making.asked.layers)
        return made.held_to(self, self.file is not None and not one.recorded and one.dtype != release)

    def noise(self, dtype: torch.dtype) -> Runnable | None:
        """The class in the dtype judged (of float32: in float64), whose distance from it is the noise."""
        if self.file is not None:
            return None
        try:
            return self.making.of_class(dtype if dtype != torch.float32 else torch.float64)
        except RequestError:
            return None  # a class that does not run in float64: the declared bounds judge


class Against(Pass):
    """A candidate beside another run. quiet: nothing is compared in this dtype, the numbers are only looked at."""

    def held_to(self, others: Others, quiet: bool) -> Against:
        self._others, self._quiet = others, quiet
        self._noise = None if quiet else others.noise(self.dtype)
        return self

    def comparing(self, scene: Scene, probe: bool) -> Compare:
        del probe
        if self._quiet:
            return _nothing
        runs = [self._others.exact, *([self._noise] if self._noise is not None else [])]
        level = [Level(one.run(scene.inputs), scene.several) for one in runs]
        free = Free(scene, [])

        def compare(segment: Segment, sites: Sites, block: Block | None) -> None:
            for other in level:
                other.follow(segment)
            _Compared(self.judge, scene, free, level).segment(segment, sites, block, self.modes, self.layers)

        return compare


def _nothing(segment: Segment, sites: Sites, block: Block | None) -> None:
    del segment, sites, block


class Level:
    """A run that is kept level with another one: it has gone as far, and no farther. `values` by name of site."""

    def __init__(self, run: Running, several: bool) -> None:
        self.run, self.values = run, dict[str, Tensor]()
        self._several, self._place = several, 0
        self.entered: Tensor | None = None

    def follow(self, segment: Segment) -> None:
        """Go on to the same layer, or over what lies between this layer and the next."""
        segments, at = self.run.segments, segment.layer
        self.values, self.entered = {}, None
        if at is None:
            while self._place < len(segments) and segments[self._place].layer is None:
                self._step()
            return
        wanted = (at.stack, at.number)
        places = [i for i, s in enumerate(segments) if s.layer and (s.layer.stack, s.layer.number) == wanted]
        if not places or places[0] < self._place:
            return
        while self._place <= places[0]:
            self._step()
        self.entered = self.run.entering(segments[places[0]])

    def _step(self) -> None:
        segment = self.run.segments[self._place]
        sites = self.run.advance(segment)
        self.values |= named(segment, sites, self._several)
        for stack in self.run.stacks:
            if self.run.ends_in(segment, stack):
                normed = sites.get(f"{stack}.final_norm" if self._several else "final_norm")
                given = self.run.gives(stack, normed, normed is not None)
                self.run.outputs |= {} if given is None else {stack: given}
        self._place += 1


@dataclass
class _Compared:
    """One segment of a candidate beside the same of the reference."""

    judge: Judge
    scene: Scene
    free: Free
    level: list[Level]

    def segment(
        self, segment: Segment, sites: Sites, block: Block | None, modes: frozenset[Mode], layers: range | None
    ) -> None:
        run, main, at = self.scene.run, self.level[0], segment.layer
        self._ends(segment, sites)
        names = [b.name for b in block.branches] if block is not None and at is not None else []
        if at is not None:
            theirs = {name: run.routes(at, name) for name in names}
            self.free.stray(at.stack, theirs, {name: main.run.routes(at, name) for name in names})
            if layers is not None and at.number not in layers:
                return
        if "end-to-end" in modes:
            self._add("end-to-end", segment, sites, None)
        if "layer" in modes and at is not None and main.entered is not None:
            again = run.rerun(segment, main.entered, main.run.outputs)
            other = strayed_rows(
                {name: run.routes(at, name) for name in names}, {name: main.run.routes(at, name) for name in names}
            )
            self._add("layer", segment, again, other)

    def _ends(self, segment: Segment, sites: Sites) -> None:
        """Note what a stack of the candidate gives."""
        for stack in self.scene.run.stacks:
            if self.scene.run.ends_in(segment, stack):
                normed = sites.get(f"{self.scene.prefix(stack)}final_norm")
                given = self.scene.run.gives(stack, normed, normed is not None)
                self.scene.run.outputs |= {} if given is None else {stack: given}

    def _add(self, mode: Mode, segment: Segment, sites: Sites, other: Tensor | None) -> None:
        noisy: Mapping[str, Tensor] = self.level[1].values if len(self.level) > 1 else {}
        for name, value in named(segment, sites, self.scene.several).items():
            expected = self.level[0].values.get(name)
            if expected is None:
                continue  # told of where the manifest has it
            if expected.shape != value.shape:
                raise RequestError(f"{name}: shape {list(value.shape)}, the reference's is {list(expected.shape)}")
            stack = self._stack(name, segment)
            strayed = other if mode == "layer" else self.free.strayed.get(stack)
            noise = noisy.get(name)
            noise = noise if noise is not None and noise.shape == expected.shape else None
            valid = counted(self.scene.valid(stack), strayed)
            self.judge.add(name, mode, value, Expected(expected.to(value.device), noise), valid=valid)

    def _stack(self, name: str, segment: Segment) -> str:
        if segment.layer is not None:
            return segment.layer.stack
        stacks = self.scene.run.stacks
        return next((s for s in stacks if name.startswith(f"{s}.")), stacks[-1])
