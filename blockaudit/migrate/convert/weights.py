"""One file of the target, written from front to back: what is proved already is read again, all else is made."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from blockaudit.checkpoint.hashing import digester
from blockaudit.checkpoint.ranges import Span
from blockaudit.errors import RequestError
from blockaudit.migrate.convert.computing import Computing
from blockaudit.migrate.convert.copying import copy_range, write_all
from blockaudit.migrate.convert.digests import ReadFiles, Written
from blockaudit.migrate.convert.filling import part, pattern
from blockaudit.migrate.convert.journal import Done, Journal, Synced
from blockaudit.migrate.convert.layout import Placed, TargetFile, Unit, Work
from blockaudit.migrate.convert.source import Source
from blockaudit.migrate.convert.strands import CHUNK, Buffers
from blockaudit.records.migration import Filled, Step

# Bytes after which what was written is brought to the disk beside the work, so that the end need not wait for it all.
_FLUSH = 256 << 20


class StoppedError(Exception):
    """Another thread has failed, or the user has asked to stop."""


class Shared(msgspec.Struct, frozen=True):
    """What the files of one conversion have in common. `hashes` is None where they were waived."""

    units: tuple[Unit, ...]
    source: Source
    journal: Journal
    pool: ThreadPoolExecutor
    hashes: ReadFiles | None
    durable: bool
    computing: threading.Lock
    stop: threading.Event
    advance: Callable[[int], None]


class Result(msgspec.Struct, frozen=True):
    """A file that is whole: its SHA-256, the digests of its tensors and of the inputs that were read, by key."""

    sha256: str
    outputs: dict[str, str]
    inputs: dict[str, str]


class FileWriter:
    """Writes one file at `path`. `run` raises RequestError, NotEqualError, StoppedError, and OSError."""

    def __init__(self, file: TargetFile, path: str, shared: Shared) -> None:
        self._file, self._path, self._shared = file, path, shared
        self._buffers = Buffers() if shared.hashes is not None else Buffers(1)
        self._sha = Written(shared.pool) if shared.hashes is not None else None
        self._outputs: dict[str, str] = {}
        self._inputs: dict[str, str] = {}
        self._unflushed = 0

    def run(self) -> Result:
        if self._sha is None and self._file.name in self._shared.journal.synced and self._is_whole():
            self._moved(self._file.size)
            return Result("", {}, {})
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        with ThreadPoolExecutor(1) as self._flusher:
            try:
                return self._written()
            finally:
                self._flusher.shutdown()
                os.close(self._fd)

    def _is_whole(self) -> bool:
        return os.path.exists(self._path) and os.stat(self._path).st_size == self._file.size

    def _written(self) -> Result:
        # What an earlier run of another layout left behind the end must not stay.
        os.ftruncate(self._fd, min(os.fstat(self._fd).st_size, self._file.size))
        self._put(0, memoryview(self._file.head))
        for number, work in enumerate(self._file.works):
            if not self._proved(number, work):
                self._done(number, work, self._made(work))
        if os.fstat(self._fd).st_size != self._file.size:
            raise RequestError(f"{self._path}: it was changed while it was written: run again")
        if self._shared.durable:
            os.fsync(self._fd)
        if self._sha is None:
            if self._shared.durable:
                self._shared.journal.add(Synced(self._file.name))
            return Result("", {}, {})
        return Result(self._sha.finish(), self._outputs, self._inputs)

    # -- what an earlier run has done ---------------------------------------------------------------------------------

    def _proved(self, number: int, work: Work) -> bool:
        """Whether the bytes that stand there have the digests that the journal claims; if so they are hashed along."""
        claim = self._shared.journal.done.get((self._file.name, number))
        if claim is None or self._sha is None or set(claim.outputs) != {p.key for p in work.outputs}:
            return False
        if not all(self._stands(placed, claim.outputs[placed.key]) for placed in work.outputs):
            return False
        for placed in work.outputs:
            self._again(placed)
        self._outputs |= claim.outputs
        self._inputs |= claim.inputs
        return True

    def _stands(self, placed: Placed, digest: str) -> bool:
        hasher, chunk = digester(), self._buffers.take(CHUNK, 1)
        try:
            for start in range(placed.start, placed.stop, CHUNK):
                self._check()
                view = chunk.view[: min(CHUNK, placed.stop - start)]
                if os.preadv(self._fd, [view], start) != len(view):
                    return False
                hasher.update(view)
        finally:
            chunk.let_go()
        return hasher.hexdigest() == digest

    def _again(self, placed: Placed) -> None:
        assert self._sha is not None
        for start in range(placed.start, placed.stop, CHUNK):
            chunk = self._buffers.take(min(CHUNK, placed.stop - start), 1)
            os.preadv(self._fd, [chunk.view], start)
            self._sha.add_chunk(chunk)
            self._moved(len(chunk.view))

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
            span = self._shared.source.span(key)
            if self._sha is None:
                self._inside(span, placed.start)
            else:
                inputs[key] = outputs[placed.key] = self._through(span, placed.start)
        return Done(self._file.name, 0, outputs, inputs)

    def _inside(self, span: Span, at: int) -> None:
        """Copy a range inside the kernel."""
        self._check()
        if copy_range(self._shared.source.files.fd(span.path), span.offset, self._fd, at, span.nbytes) != span.nbytes:
            raise RequestError(f"{span.path}: it was cut off while it was read")
        self._wrote(span.nbytes)
        self._moved(span.nbytes)

    def _through(self, span: Span, at: int) -> str:
        """Copy a range by chunks, each hashed three times while it is at hand: for both files and for the tensor."""
        assert self._sha is not None
        assert self._shared.hashes is not None
        hasher, read = digester(), self._shared.hashes.of(span.path)
        for start in range(0, span.nbytes, CHUNK):
            self._check()
            part_ = span.part(start, min(CHUNK, span.nbytes - start))
            chunk = self._buffers.take(part_.nbytes, 3)
            self._shared.source.files.read_into(part_, chunk.view)
            read.offer(part_.offset, chunk)
            self._sha.add_chunk(chunk)
            hasher.update(chunk.view)
            write_all(self._fd, chunk.view, at + start)
            self._wrote(part_.nbytes)
            chunk.let_go()
            self._moved(part_.nbytes)
        return hasher.hexdigest()

    def _filled(self, filled: Filled, placed: Placed) -> Done:
        of, hasher = pattern(filled), digester()
        for start in range(placed.start, placed.stop, CHUNK):
            data = part(of, start - placed.start, min(CHUNK, placed.stop - start))
            hasher.update(data)
            self._put(start, memoryview(data))
            self._moved(len(data))
        return Done(self._file.name, 0, {placed.key: hasher.hexdigest()})

    def _computed(self, step: Step, work: Work) -> Done:
        places = {placed.key: placed for placed in work.outputs}
        seen = {key: digester() for key in step.inputs}
        made = {key: digester() for key in places}

        def see(key: str, start: int, view: memoryview) -> None:
            self._check()
            if self._shared.hashes is not None:
                seen[key].update(view)
                span = self._shared.source.span(key)
                self._shared.hashes.of(span.path).reach(span.offset + start + len(view))

        def write(key: str, start: int, view: memoryview) -> None:
            if key in places:
                if self._sha is not None:
                    made[key].update(view)
                self._put(places[key].start + start, view)
                self._moved(len(view))

        # One at a time: what a step holds is what bounds the memory.
        with self._shared.computing:
            if self._sha is not None:
                self._sha.wait()
            Computing(step, self._shared.source.span, self._shared.source.files, write, see).run()
        if self._sha is None:
            return Done(self._file.name, 0, {})
        outputs = {key: hasher.hexdigest() for key, hasher in made.items()}
        return Done(self._file.name, 0, outputs, {key: hasher.hexdigest() for key, hasher in seen.items()})

    # -- what every piece of work does --------------------------------------------------------------------------------

    def _put(self, at: int, view: memoryview) -> None:
        write_all(self._fd, view, at)
        if self._sha is not None:
            self._sha.add_view(view)
        self._wrote(len(view))

    def _done(self, number: int, work: Work, done: Done) -> None:
        if self._sha is None:
            return
        self._outputs |= done.outputs
        self._inputs |= done.inputs
        size = sum(placed.stop - placed.start for placed in work.outputs)
        self._shared.journal.add(msgspec.structs.replace(done, work=number), size)

    def _wrote(self, nbytes: int) -> None:
        self._unflushed += nbytes
        if self._shared.durable and self._unflushed >= _FLUSH:
            self._unflushed = 0
            self._flusher.submit(os.fdatasync, self._fd)

    def _check(self) -> None:
        if self._shared.stop.is_set():
            raise StoppedError

    def _moved(self, nbytes: int) -> None:
        self._check()
        self._shared.advance(nbytes)
