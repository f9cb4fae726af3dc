"""Hashes of tensors and of checkpoints: the same tensors have the same hash, in any files, order or container.

A tensor's digest is the BLAKE3 of its bytes as safetensors stores them (little-endian, row-major): O'Connor, Aumasson,
Neves, Wilcox-O'Hearn 2020, "BLAKE3: one function, fast everywhere", 32 bytes in hexadecimal, as `b3sum` prints it. It
is a tree of 1 KiB leaves, so that it costs a fraction of the SHA-256 that files are published with.

The semantic hash is the SHA-256 of one line for the scheme and one for each tensor, in the order of the keys' code
points: the JSON array `[key, dtype, [shape...], digest]` without spaces, in UTF-8, each line ended by a line feed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from blockaudit.checkpoint.ranges import OpenFiles, Span
from blockaudit.checkpoint.spans import spans_of
from blockaudit.records.checkpoint import Checkpoint, TensorHeader

SCHEME = "blockaudit/semantic/1"
# Bytes that are read at a time: they stay in a core's cache while they are hashed.
CHUNK = 1 << 20


def digester() -> Any:
    """A new BLAKE3: `update(buffer)` as often as wanted, then `hexdigest()`. Both let other threads run."""
    from blake3 import blake3  # a few milliseconds that commands without hashes do not pay

    return blake3()


def semantic(tensors: Mapping[str, TensorHeader], digests: Mapping[str, str]) -> str:
    """The semantic hash of tensors by key, with the digest of each."""
    found = hashlib.sha256(f"{SCHEME}\n".encode())
    for key in sorted(tensors):
        line = [key, tensors[key].dtype, tensors[key].shape, digests[key]]
        found.update(msgspec.json.encode(line) + b"\n")
    return found.hexdigest()


def digest_of(files: OpenFiles, span: Span) -> str:
    """The digest of one range of bytes. Raises RequestError."""
    hasher, buffer = digester(), memoryview(bytearray(min(CHUNK, span.nbytes)))
    for start in range(0, span.nbytes, CHUNK):
        part = span.part(start, min(CHUNK, span.nbytes - start))
        files.read_into(part, buffer[: part.nbytes])
        hasher.update(buffer[: part.nbytes])
    return hasher.hexdigest()


def digests_of(files: OpenFiles, spans: Iterable[tuple[str, Span]]) -> dict[str, str]:
    """The digest of each range by key, on all cores. Raises RequestError."""
    named = list(spans)
    with ThreadPoolExecutor(cores()) as pool:
        found = pool.map(partial(digest_of, files), (span for _, span in named))
        return dict(zip((key for key, _ in named), found, strict=True))


def sha256_of(files: OpenFiles, path: str) -> str:
    """The SHA-256 of a whole file. Raises RequestError."""
    hasher, size = hashlib.sha256(), files.identities[path][2]
    buffer = memoryview(bytearray(min(CHUNK, size)))
    for start in range(0, size, CHUNK):
        part = buffer[: min(CHUNK, size - start)]
        files.read_into(Span(path, start, len(part)), part)
        hasher.update(part)
    return hasher.hexdigest()


def sha256_of_each(files: OpenFiles, paths: Sequence[str]) -> dict[str, str]:
    """The SHA-256 of whole files by path, on all cores. Raises RequestError."""
    with ThreadPoolExecutor(cores()) as pool:
        return dict(zip(paths, pool.map(partial(sha256_of, files), paths), strict=True))


def semantic_hash(checkpoint: Checkpoint) -> str:
    """The semantic hash of a checkpoint of this machine: every byte of it is read. Raises RequestError."""
    files = OpenFiles(tuple({file.path: None for file in (*checkpoint.files, *checkpoint.owner.values())}))
    try:
        of = spans_of(checkpoint, files)
        spans = ((key, of(key)) for key in checkpoint.tensors)
        found = semantic(checkpoint.tensors, digests_of(files, spans))
        files.check()
        return found
    finally:
        files.close()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
