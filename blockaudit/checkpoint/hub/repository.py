"""A repository of a hub at one commit, read as a folder: names, sizes, and positioned reads by range requests."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from blockaudit import kept
from blockaudit.checkpoint.files import COMMITTED, REMOTE, short
from blockaudit.checkpoint.hub.address import Address, Settings, parse, settings, token
from blockaudit.checkpoint.hub.listing import Entry, Listing, resolve
from blockaudit.checkpoint.hub.pieces import Asked, Pieces
from blockaudit.checkpoint.hub.ranges import Range
from blockaudit.checkpoint.hub.transport import Transport
from blockaudit.checkpoint.storage import WORKERS, Span
from blockaudit.errors import RequestError
from blockaudit.records.checkpoint import Origin

# What is fetched of the beginning of a file, where headers are, and at least of any other place.
HEAD, LEAST = 64 * 1024, 4 * 1024
# Reading on, as streams do, fetches more with each step.
_AHEAD = 1 << 20
# Two vectors that lie this near are fetched in one request.
_NEAR = 32 * 1024

_open: dict[str, Repository] = {}


def connect(source: str) -> str:
    """Resolve SOURCE to a commit and return the folder that it is read under. Raises RequestError."""
    address, asked = parse(source), settings(source)
    transport = Transport(asked, token(), WORKERS)
    try:
        found = resolve(transport, address, source)
    except BaseException:
        transport.close()
        raise
    opened = Repository(source, address, asked, found, transport)
    _open[opened.folder] = opened
    return opened.folder


def disconnect(folder: str) -> None:
    """Close a repository, and keep what was read of it for the next audit."""
    if (found := _open.pop(folder, None)) is not None:
        found.close()


def repository(folder: str) -> Repository:
    """The repository that is open under a folder. Raises OSError where there is none."""
    found = _open.get(folder)
    if found is None:
        raise FileNotFoundError(2, "no connection to this repository is open")
    return found


def _split(path: str) -> tuple[Repository, str]:
    """The repository that a path lies in, and the name of the file in it."""
    parts = path.split("/", 4)
    return repository("/".join(parts[:4])), parts[4] if len(parts) > 4 else ""


def names_in(folder: str) -> list[str]:
    """Names in a folder of a repository, sorted. Raises OSError."""
    opened, name = _split(folder)
    return opened.names(f"{name}/" if name else "")


def origin(folder: str) -> Origin:
    """The commit of a folder of a repository, with the hashes of the files in it. Raises OSError."""
    opened, name = _split(folder)
    whole = opened.origin()
    if not name:
        return whole
    inside = f"{name}/"
    hashes = {key.removeprefix(inside): said for key, said in whole.hashes.items() if key.startswith(inside)}
    return Origin(whole.revision, hashes, whole.read)


def lists(path: str) -> bool:
    """Whether a path is that of a file."""
    opened, name = _split(path)
    return name in opened.files


def open_remote(path: str) -> RemoteFile:
    """Open a file for positioned reads. Raises OSError where the commit has none of that name."""
    opened, name = _split(path)
    if name not in opened.files:
        raise FileNotFoundError(2, "no such file at this commit")
    return RemoteFile(opened, name, opened.size(name))


def fetch_ahead(spans: Sequence[Span]) -> None:
    """Fetch bytes that are going to be read, several requests at a time."""

    def fetch(span: Span) -> None:
        path, offset, length = span
        opened, name = _split(path)
        opened.read(name, offset, length)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(fetch, _joined(spans)))


def _joined(spans: Iterable[Span]) -> list[Span]:
    joined: list[Span] = []
    for path, offset, length in sorted(spans):
        if joined and joined[-1][0] == path and offset <= joined[-1][1] + joined[-1][2] + _NEAR:
            start = joined[-1][1]
            joined[-1] = path, start, max(joined[-1][2], offset + length - start)
        else:
            joined.append((path, offset, length))
    return joined


class Repository:
    """One commit. Reads give what is held already, or fetch it; they are safe from several threads."""

    def __init__(
        self, source: str, address: Address, asked: Settings, listing: Listing, transport: Transport
    ) -> None:  # fmt: skip
        self._source, self._transport, self._listing = source, transport, listing
        self._address = address
        self.folder = f"{REMOTE}{address.repository}@{listing.commit}"
        self.files: dict[str, Entry] = listing.files
        self._pieces, self._fetched = Pieces(), False
        self._key = kept.digest(f"{asked.endpoint} {self.folder}".encode()).hex()
        self._entry = _entry(self._key)
        if self._entry is not None:
            self._pieces.load(self._entry, self._key, self.files)
        # Of the hub, or of what an earlier audit kept: the same number for the same audit.
        self._asked = Asked()

    def origin(self) -> Origin:
        """The commit, the hashes that the hub publishes, and what has been read so far."""
        hashes = {name: entry.sha256 for name, entry in self.files.items() if entry.sha256}
        return Origin(self._listing.commit, hashes, self._asked.total)

    def names(self, inside: str = "") -> list[str]:
        """Names at the top of the repository, or in a folder of it (`text_encoder/`), sorted."""
        below = (name.removeprefix(inside) for name in self.files if name.startswith(inside))
        return sorted({name.partition("/")[0] for name in below})

    def size(self, name: str) -> int:
        """How long a file is. Raises RequestError where the hub does not say."""
        size = self.files[name].size
        if size is None:
            raise RequestError(f"{self._source}: {short(name)}: the hub gives no size of it: use another HF_ENDPOINT")
        return size

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Bytes of a file, clipped to it. Raises RequestError."""
        stop = min(offset + length, self.size(name))
        if stop <= offset:
            return b""
        self._asked.add(name, offset, stop)
        start, held = self._pieces.around(name, offset)
        if start + len(held) < stop:
            start, held = self._fetch(name, start, held, offset, stop)
        return held[offset - start : stop - start]

    def _fetch(self, name: str, start: int, held: bytes, offset: int, stop: int) -> tuple[int, bytes]:
        """What is held around `offset`, and what it lacks up to `stop`, fetched; at places, some more."""
        size, first = self.size(name), start + len(held)
        ahead = min(len(held), _AHEAD) if held else (HEAD if first == 0 else LEAST)
        last = min(size, max(stop, first + ahead))
        path = f"/{self._address.repository}/resolve/{self._listing.commit}/{quote(name)}"
        what = f"{self._source}: {short(name)}"
        data = self._transport.part(path, what, Range(first, last - first, size))
        self._pieces.add(name, first, data)
        self._fetched = True
        return start, held + data

    def close(self) -> None:
        """End the connections, and keep what was read."""
        self._transport.close()
        if self._fetched and self._entry is not None:
            self._pieces.save(self._entry, self._key, self.files)


def _entry(key: str) -> Path | None:
    folder = kept.folder("hub")
    return folder and folder / f"{key}.parts"


class RemoteFile:
    """A file of a repository, read by position."""

    identity = COMMITTED

    def __init__(self, opened: Repository, name: str, size: int) -> None:
        self._opened, self._name, self.size = opened, name, size

    def read_at(self, length: int, offset: int) -> bytes:
        return self._opened.read(self._name, offset, length)

    def read_into(self, view: memoryview, offset: int) -> int:
        data = self.read_at(len(view), offset)
        view[: len(data)] = data
        return len(data)

    def stream(self) -> BinaryIO:
        return io.BufferedReader(_Stream(self), LEAST)

    def close(self) -> None:
        """Nothing is held open: connections belong to the repository."""


class _Stream(io.RawIOBase):
    """A file as readers that seek want it."""

    def __init__(self, file: RemoteFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        if base + offset < 0:
            raise OSError(22, "negative seek position")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        count = self._file.read_into(memoryview(buffer).cast("B"), self._at)
        self._at += count
        return count
