"""A plan, carried out: every weight file written, hashed and proved, on as many threads as there is work for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

import msgspec

from blockaudit.checkpoint.hashing import cores, digests_of, semantic
from blockaudit.migrate.convert.digests import ReadFiles
from blockaudit.migrate.convert.journal import Journal
from blockaudit.migrate.convert.layout import TargetFile, units_of
from blockaudit.migrate.convert.source import Source
from blockaudit.migrate.convert.weights import FileWriter, Result, Shared
from blockaudit.migrate.convert.workplace import PART, Workplace
from blockaudit.records.checkpoint import TensorHeader
from blockaudit.records.migration import Plan

# What is being done, how much of it is done, how much there is, in bytes.
Progress = Callable[[str, int, int], None]


class StoppedError(Exception):
    """Another thread has failed, or the user has asked to stop."""


class Hashes(msgspec.Struct, frozen=True):
    """SHA-256 of the files read (by path) and written (by name), digests of target tensors, and both semantic hashes.

    Empty where they were waived.
    """

    read: dict[str, str] = {}
    written: dict[str, str] = {}
    tensors: dict[str, str] = {}
    source: str = ""
    target: str = ""


def write_weights(
    plan: Plan,
    files: Sequence[TargetFile],
    source: Source,
    place: Workplace,
    journal: Journal,
    known: Mapping[str, str],
    *,
    hashing: bool,
    durable: bool,
    progress: Progress | None = None,
) -> Hashes:
    """Write every file of the target in `place`, as `*.part`.

    known: digests of source tensors that were read before. Raises RequestError, NotEqualError, and OSError for what
    disks do; what is done then stays, and stands in the journal.
    """
    # One thread more than cores: one of them waits for the disk.
    with ThreadPoolExecutor(cores() + 1, "hash") as pool:
        read = ReadFiles(source.files, pool) if hashing else None
        shared = Shared(
            units=units_of(plan),
            source=source,
            journal=journal,
            pool=pool,
            hashes=read,
            durable=durable,
            computing=threading.Lock(),
            advance=_counter(sum(f.size for f in files), progress, stop := threading.Event()),
        )
        writers = [FileWriter(file, place.path(file.name + PART), shared) for file in files]
        results = _all(writers, stop, _lines(len(files), len(source.paths)))
        if read is None:
            return Hashes()
        return _hashes(files, results, source, read, known)


def _lines(targets: int, sources: int) -> int:
    """How many files are written at a time: each line of work keeps about two hashing threads busy."""
    return max(1, min(cores() // 2, targets, sources))


def _all(writers: Sequence[FileWriter], stop: threading.Event, lines: int) -> list[Result]:
    """Run the writers; the first that fails stops the others, and its error is raised once they have stopped."""
    with ThreadPoolExecutor(lines, "write") as pool, _stopping(stop):
        futures = [pool.submit(writer.run) for writer in writers]
        # By turns, so that an interrupt is heard.
        while wait(futures, 0.2, FIRST_EXCEPTION).not_done and not any(map(_failed, futures)):
            pass
        stop.set() if any(map(_failed, futures)) else None
        wait(futures)
        errors = [e for f in futures if (e := f.exception()) is not None]
        for error in sorted(errors, key=lambda e: isinstance(e, StoppedError)):
            raise error
        return [future.result() for future in futures]


@contextmanager
def _stopping(stop: threading.Event) -> Generator[None]:
    """Whatever leaves here stops the threads, which are waited for."""
    try:
        yield
    except BaseException:
        stop.set()
        raise


def _failed(future: Future[Result]) -> bool:
    return future.done() and future.exception() is not None


def _counter(total: int, progress: Progress | None, stop: threading.Event) -> Callable[[int], None]:
    """Adds up what every thread has written, and tells. Raises StoppedError in each where they are to stop."""
    lock, done = threading.Lock(), [0]

    def advance(nbytes: int) -> None:
        if stop.is_set():
            raise StoppedError
        with lock:
            done[0] += nbytes
            if progress is not None:
                progress("convert", done[0], total)

    return advance


def _hashes(
    files: Sequence[TargetFile],
    results: Sequence[Result],
    source: Source,
    read: ReadFiles,
    known: Mapping[str, str],
) -> Hashes:
    """All hashes, after what no rule has read was read too."""
    inputs = dict(known)
    outputs: dict[str, str] = {}
    for result in results:
        inputs |= result.inputs
        outputs |= result.outputs
    missing = [(key, source.span(key)) for key in source.tensors if key not in inputs]
    inputs |= digests_of(source.files, missing)
    types = {p.key: TensorHeader(p.type.dtype, p.type.shape, (0, 0)) for f in files for w in f.works for p in w.outputs}
    return Hashes(
        read=read.finish(source.paths),
        written={file.name: result.sha256 for file, result in zip(files, results, strict=True)},
        tensors=outputs,
        source=semantic(source.tensors, inputs),
        target=semantic(types, outputs),
    )
