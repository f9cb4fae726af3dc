"""What watches a run beside the comparison: notes, laws, blindness, the repro, and whoever looks at a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from blockaudit.records.conformance import Conformance, Mode, SiteResult
from blockaudit.trace import blind, notes
from blockaudit.trace.blind import Blindness
from blockaudit.trace.identify.solved import Solved
from blockaudit.trace.judge import NAMES
from blockaudit.trace.laws import Laws
from blockaudit.trace.notes import Notes
from blockaudit.trace.repro.finder import Finder, written
from blockaudit.trace.run import Observer, Pass
from blockaudit.trace.scene import Seen

# What is done, how much of it, how much there is (layers and what lies between them).
Progress = Callable[[str, int, int], None]
Fields = Mapping[tuple[str, int | None], Sequence[Solved]]


@dataclass
class Watch:
    """The observers of one pass: of its main batch and of those beside it; `own` are of this rank's layers alone."""

    notes: list[Notes]
    blindness: Blindness
    finder: Finder
    main: list[Observer]
    main_own: list[Observer]
    short: list[Observer]
    short_own: list[Observer]

    def told(self) -> Any:
        """What another rank cannot know."""
        seen = [(n.sites, n.strayed) for n in self.notes]
        return seen, self.blindness.asked, self.blindness.found, self.finder.case, self.finder.uncut

    def hear(self, others: Sequence[Any]) -> None:
        """Take over what other ranks told."""
        for seen, asked, found, case, uncut in others:
            for note, (sites, strayed) in zip(self.notes, seen, strict=True):
                note.sites |= sites
                for mode, rows in strayed.items():
                    note.strayed[mode] = max(note.strayed.get(mode, (0, 0)), rows)
            self.blindness.asked |= asked
            self.blindness.found |= found
            self.finder.take(case, uncut)


@dataclass
class Beside:
    """`own`: the tolerance policy is a user's."""

    own: bool
    algebra: bool
    repro: Path | None
    progress: Progress | None
    notes: list[Notes] = field(default_factory=list[Notes])
    blind: list[Blindness] = field(default_factory=list[Blindness])
    finders: list[Finder] = field(default_factory=list[Finder])
    laws: Laws = field(default_factory=Laws)
    _done: int = 0

    def watch(self, work: Pass, solved: Sequence[Fields], last: bool) -> Watch:
        """The observers of one pass.

        solved: what the numbers said of each norm, filled as the pass goes. last: the pass is in the release dtype.
        """
        noted, short, finder = Notes(work, geometry=last), Notes(work, geometry=False), Finder()
        blindness = Blindness(work, self.own, lambda f, layer: any(_epsilon(s, f, layer) for s in solved))
        self.notes += [noted, short]
        self.blind.append(blindness)
        self.finders.append(finder)
        found = [finder.look] if self.repro is not None else []
        ticks = [self._tick] if self.progress is not None else []
        laws = [self.laws.look] if self.algebra and not self.laws.stacks else []
        return Watch(
            [noted, short], blindness, finder, [noted.look, *laws, *ticks], [blindness.look, *found],
            [short.look, *ticks], found,
        )  # fmt: skip

    def settle(
        self, run: Conformance, modes: frozenset[Mode], every: Sequence[SiteResult], source: str, **told: Any
    ) -> tuple[Conformance, str]:
        """The run with all that was noted, and why the repro could not be written.

        every: what was judged, one batch or probe beside another. told: what
        `notes.silent` wants to know.
        """
        laws, lawless = self.laws.settle() if self.algebra else ([], [])
        silent = notes.silent(self.notes, modes, run.sites, full=run.depth == "full", **told)
        unwritten = ""
        if self.repro is not None:
            remark, unwritten = written(self.repro, self.finders, run, source)
            silent += [remark] if remark else []
        noted = replace(
            run,
            telemetry=tuple(t for n in self.notes for t in n.telemetry),
            growth=tuple(g for n in self.notes for g in n.growth()),
            non_finite=tuple(notes.non_finite(every)),
            silent=(*run.silent, *silent, *lawless),
            blind=tuple(blind.merged(self.blind)),
            laws=tuple(laws),
        )
        return noted, unwritten

    def _tick(self, seen: Seen) -> None:
        segments = len(seen.run.segments)
        self._done = self._done % segments + 1
        layer = seen.segment.layer
        where = f"{layer.stack}, layer {layer.number}" if layer is not None else "embedding and head"
        if self.progress is not None:
            self.progress(f"{NAMES[seen.scene.dtype]}: {where}", self._done, segments)


def _epsilon(solved: Fields, field_: str, layer: int | None) -> bool:
    """Whether the numbers gave the epsilon of a norm."""
    return any(s.field == "epsilon" and s.value is not None for s in solved.get((field_, layer), ()))
