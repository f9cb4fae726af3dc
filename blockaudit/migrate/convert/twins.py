"""Stored ties: two source keys that the map takes for one tensor, held to be equal in every byte."""

from __future__ import annotations

from collections.abc import Mapping

from blockaudit.checkpoint.hashing import CHUNK, digester
from blockaudit.checkpoint.ranges import OpenFiles, Span
from blockaudit.migrate.convert.proof import NotTwinsError, Twins
from blockaudit.migrate.convert.source import Source


def verify(pairs: Mapping[str, str], source: Source, hashing: bool) -> dict[str, str]:
    """Compare each key with its twin; the digests of both. Raises NotTwinsError, RequestError."""
    digests: dict[str, str] = {}
    for key, twin in pairs.items():
        a, b = source.span(key), source.span(twin)
        if a == b and not hashing:
            continue  # one storage
        digest = _compared(source.files, a, b, key, twin)
        digests[key] = digests[twin] = digest
    return digests if hashing else {}


def _compared(files: OpenFiles, a: Span, b: Span, key: str, twin: str) -> str:
    x, y = memoryview(bytearray(CHUNK)), memoryview(bytearray(CHUNK))
    hasher = digester()
    for start in range(0, a.nbytes, CHUNK):
        count = min(CHUNK, a.nbytes - start)
        files.read_into(a.part(start, count), x[:count])
        files.read_into(b.part(start, min(count, max(0, b.nbytes - start))), y[: min(count, max(0, b.nbytes - start))])
        if b.nbytes != a.nbytes or x[:count] != y[:count]:
            raise NotTwinsError(Twins(key, twin, start + _first(x[:count], y[:count])))
        hasher.update(x[:count])
    return hasher.hexdigest()


def _first(x: memoryview, y: memoryview) -> int:
    """The first byte in which two differ; 0 where none of them does."""
    return next((n for n, (a, b) in enumerate(zip(x.tobytes(), y.tobytes(), strict=True)) if a != b), 0)
