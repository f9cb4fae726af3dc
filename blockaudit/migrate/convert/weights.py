"""One file of the target, written from front to back: what is proved already is read again, all else is made."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from blockaudit.checkpoint.hashing import digester
from blockaudit.checkpoint.ranges import Gathered
from blockaudit.migrate.convert.computing import Computing
from blockaudit.migrate.convert.digests import ReadFiles
from blockaudit.migrate.convert.filling import part, pattern
from blockaudit.migrate.convert.journal import Done, Journal, Synced
from blockaudit.migrate.convert.layout import Placed, TargetFile, Unit, Work
from blockaudit.migrate.convert.sinks import Advance, Hashed, Plain
from blockaudit.migrate.convert.source import Source
from blockaudit.migrate.convert.strands import BLOCK
from blockaudit.records.migration import Filled, Step


class Shared(msgspec.Struct, frozen=True):
    """What the files of one conversion have in common. `hashes` is None where they were waived.

    `computing` is held by the one step with operations that is in memory; `advance` raises where the work is to stop.
    """

    units: tuple[Unit, ...]
    source: Source
    journal: Journal
    pool: ThreadPoolExecutor
    hashes: ReadFiles | None
    durable: bool
    computing: threading.Lock
    advance: Advance


class Result(msgspec.Struct, frozen=True):
    """A file that is whole: its SHA-256, the digests of its tensors and of the inputs that were read, by key."""

    sha256: str = ""
    outputs: dict[str, str] = {}
    inputs: dict[str, str] = {}


class FileWriter:
    """Writes one file at `path`. `run` raises RequestError, NotEqualError, OSError, and what `advance` raises."""

    def __init__(self, file: TargetFile, path: str, shared: Shared) -> None:
        self._file, self._path, self._shared = file, path, shared
        self._outputs: dict[str, str] = {}
        self._inputs: dict[str, str] = {}

    def run(self) -> Result:
        shared = self._shared
        if shared.hashes is None and self._file.name in shared.journal.synced and os.path.exists(self._path):
            shared.advance(self._file.size)
            return Result()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            return self._written(shared)
        finally:
            os.close(self._fd)

    def _written(self, shared: Shared) -> Result:
        files, size = shared.source.files, self._file.size
        if shared.hashes is None:
            self._sink = Plain(self._fd, files, shared.advance, shared.durable)
        else:
            self._sink = Hashed(self._fd, self._path, size, files, shared.hashes, shared.pool, shared.advance)
        try:
            self._sink.write(memoryview(self._file.head))
            for number, work in enumerate(self._file.works):
                if not self._proved(number, work):
                    self._done(number, work, self._made(work))
            sha256 = self._sink.finish()
        finally:
            self._sink.close()
        os.ftruncate(self._fd, size)
        if shared.durable:
            os.fsync(self._fd)
            if shared.hashes is None:
                shared.journal.add(Synced(self._file.name))
        return Result(sha256, self._outputs, self._inputs)

    # -- what an earlier run has done ---------------------------------------------------------------------------------

    def _proved(self, number: int, work: Work) -> bool:
        """Whether the bytes that stand there have the digests that the journal claims; if so they are hashed along."""
        claim = self._shared.journal.done.get((self._file.name, number))
        if claim is None or set(claim.outputs) != {p.key for p in work.outputs}:
            return False
        if not all(self._stands(placed, claim.outputs[placed.key]) for placed in work.outputs):
            return False
        for placed in work.outputs:
            self._sink.again(placed.start, placed.stop - placed.start)
        self._outputs |= claim.outputs
        self._inputs |= claim.inputs
        return True

    def _stands(self, placed: Placed, digest: str) -> bool:
        hasher, buffer = digester(), memoryview(bytearray(BLOCK))
        for start in range(placed.start, placed.stop, BLOCK):
            self._shared.advance(0)
            view = buffer[: min(BLOCK, placed.stop - start)]
            if os.preadv(self._fd, [view], start) != len(view):
                return False
            hasher.update(view)
        return hasher.hexdigest() == digest

    # -- what is made now ---------------------------------------------------------------------------------------------

    def _made(self, work: Work) -> Done:
        unit = self._shared.units[work.unit]
        if isinstance(unit, Filled):
            return self._filled(unit, work.outputs[0])
        return self._copied(unit, work) if unit.copies else self._computed(unit, work)

    def _copied(self, step: Step, work: Work) -> Done:
        outputs: dict[str, str] = {}
        inputs: dict[str, str] = {}
        for placed in work.outputs:
            key = step.inputs[step.outputs.index(placed.key)]
            inputs[key] = outputs[placed.key] = self._sink.copy(self._shared.source.span(key))
        return Done(self._file.name, 0, outputs, inputs)

    def _filled(self, filled: Filled, placed: Placed) -> Done:
        of, hasher = pattern(filled), digester()
        for start in range(0, placed.stop - placed.start, BLOCK):
            data = part(of, start, min(BLOCK, placed.stop - placed.start - start))
            hasher.update(data)
            self._sink.write(memoryview(data))
        return Done(self._file.name, 0, {placed.key: hasher.hexdigest()})

    def _computed(self, step: Step, work: Work) -> Done:
        source, hashes = self._shared.source, self._shared.hashes
        seen = {key: digester() for key in step.inputs}
        made = {placed.key: digester() for placed in work.outputs}

        def see(key: str, start: int, view: memoryview) -> None:
            self._shared.advance(0)
            if hashes is not None:
                seen[key].update(view)
                span = source.span(key)
                if not isinstance(span, Gathered):
                    hashes.of(span.path).reach(span.offset + start + len(view))

        def write(key: str, view: memoryview) -> None:
            if key in made:
                if hashes is not None:
                    made[key].update(view)
                self._sink.write(view)

        # One at a time: what a step holds is what bounds the memory.
        with self._shared.computing:
            Computing(step, source.span, source.files, write, see).run()
        return Done(self._file.name, 0, _hex(made), _hex(seen))

    def _done(self, number: int, work: Work, done: Done) -> None:
        if self._shared.hashes is None:
            return
        self._outputs |= done.outputs
        self._inputs |= done.inputs
        size = sum(placed.stop - placed.start for placed in work.outputs)
        self._shared.journal.add(msgspec.structs.replace(done, work=number), size)


def _hex(hashers: dict[str, Any]) -> dict[str, str]:
    return {key: hasher.hexdigest() for key, hasher in hashers.items()}
