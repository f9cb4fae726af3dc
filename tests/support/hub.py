"""A model hub on this machine: its API, its files by range, a second host that the large ones are served from.

`fault` may take a request away from it and answer as it likes; `sent` counts the bytes of bodies that went out.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

REPOSITORY = "org/name"
SOURCE = f"hf://{REPOSITORY}"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".bin")
_STEP = 1 << 16


class Request(BaseHTTPRequestHandler):
    """One request, and ways to answer it."""

    protocol_version = "HTTP/1.1"
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: object) -> None:
        """Tests print what they want to see."""

    def do_GET(self) -> None:
        hub = self.server.hub
        hub.asked.append(Asked(self.path, dict(self.headers), self.to_cdn))
        with suppress(ConnectionError):
            if hub.fault is None or not hub.fault(self):
                self.serve()

    @property
    def to_cdn(self) -> bool:
        return self.server is self.server.hub.cdn

    @property
    def is_api(self) -> bool:
        return self.path.startswith("/api/")

    def serve(self) -> None:
        """As a hub does."""
        hub, path = self.server.hub, unquote(urlsplit(self.path).path)
        revision = path.removeprefix(f"/api/models/{REPOSITORY}/revision/")
        name = path.removeprefix(f"/{REPOSITORY}/resolve/{COMMIT}/")
        if revision != path and "blobs=true" in self.path:
            if revision not in ("main", COMMIT, "refs/pr/1"):
                return self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return self.answer(200, json.dumps(hub.listing()).encode())
        if self.to_cdn:
            return self.send_file(hub.folder / path.removeprefix("/signed/"))
        if name != path and name.endswith(LARGE):
            return self.answer(302, b"Found", {"Location": f"{hub.cdn_url}/signed/{name}?Signature=s3cret"})
        if name != path and (hub.folder / name).is_file():
            return self.send_file(hub.folder / name)
        return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        headers = {"Content-Length": str(len(body)), **(headers or {})}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.send(body)

    def send(self, body: bytes) -> None:
        self.wfile.write(body)
        self.wfile.flush()
        self.server.hub.count(len(body))

    def span(self, size: int) -> tuple[int, int]:
        """First and last byte that were asked for."""
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        assert match is not None, "every file is read by range"
        return int(match[1]), min(int(match[2]), size - 1)

    def send_file(self, path: Path, **change: str | None) -> None:
        """The bytes that were asked for; `change` replaces headers of the answer, None takes one away."""
        size = path.stat().st_size
        first, last = self.span(size)
        headers = {"Content-Length": str(last - first + 1), "Content-Range": f"bytes {first}-{last}/{size}"}
        headers.update({k.replace("_", "-"): v for k, v in change.items() if v is not None})
        self.send_response(206)
        for name, value in headers.items():
            if change.get(name.replace("-", "_"), "") is not None:
                self.send_header(name, value)
        self.end_headers()
        self.send(self.read(path, first, last - first + 1))

    def send_whole(self, path: Path) -> None:
        """As a server does that knows nothing of ranges."""
        size = path.stat().st_size
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        for start in range(0, size, _STEP):
            self.send(self.read(path, start, _STEP))

    @staticmethod
    def read(path: Path, first: int, length: int) -> bytes:
        with path.open("rb") as file:
            file.seek(first)
            return file.read(length)

    @property
    def file(self) -> Path:
        return self.server.hub.folder / unquote(urlsplit(self.path).path).rpartition("/")[2]


@dataclass(frozen=True)
class Asked:
    """A request, as it came."""

    path: str
    headers: dict[str, str]
    to_cdn: bool


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, hub: Hub) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.hub = hub

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is what some tests are about."""


class Hub:
    """The hub and its second host, for as long as the context lasts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fault: Callable[[Request], bool] | None = None
        self.asked: list[Asked] = []
        self.sent = 0
        self.done = threading.Event()  # what stalls waits for this
        self._lock = threading.Lock()
        self.api, self.cdn = _Server(self), _Server(self)
        self.url, self.cdn_url = (f"http://127.0.0.1:{s.server_address[1]}" for s in (self.api, self.cdn))

    def __enter__(self) -> Hub:
        for server in (self.api, self.cdn):
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        for server in (self.api, self.cdn):
            server.shutdown()
            server.server_close()

    def count(self, sent: int) -> None:
        with self._lock:
            self.sent += sent

    def forget(self) -> None:
        """Count anew."""
        self.asked.clear()
        self.sent = 0

    def listing(self) -> dict[str, object]:
        """What the API says of the repository."""
        files = sorted(p for p in self.folder.rglob("*") if p.is_file())
        return {"id": REPOSITORY, "sha": COMMIT, "private": False, "siblings": [self._sibling(p) for p in files]}

    def _sibling(self, path: Path) -> dict[str, object]:
        name, size = path.relative_to(self.folder).as_posix(), path.stat().st_size
        blob = hashlib.sha1(f"{name} {size} {path.stat().st_mtime_ns}".encode()).hexdigest()
        found: dict[str, object] = {"rfilename": name, "size": size, "blobId": blob}
        if name.endswith(LARGE):
            found["lfs"] = {"sha256": sha256_of(path), "size": size, "pointerSize": 134}
        return found


def sha256_of(path: Path) -> str:
    """What the hub publishes of a file: a stand-in, for hashing hundreds of megabytes shows nothing more."""
    return hashlib.sha256(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}".encode()).hexdigest()
