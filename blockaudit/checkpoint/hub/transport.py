"""Requests to a hub: redirects followed by hand, failures retried within a bound, bodies read no further than asked.

The token goes to the hub's own origin and to no other: weights are served from hosts that the hub redirects to.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TypeVar
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3 import exceptions as failures

from blockaudit import __version__
from blockaudit.checkpoint.hub.address import Settings
from blockaudit.checkpoint.hub.ranges import Range, check
from blockaudit.errors import RequestError

ATTEMPTS = 5
_REDIRECTS = 5
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 8.0
# Bytes a second of a link that is still worth waiting for: a long answer gets more time by it.
_SLOWEST = 256 * 1024
_STEP = 1 << 20
_MOVED = (301, 302, 303, 307, 308)
_RETRIED = (408, 425, 429, 500, 502, 503, 504)
# What the hub says in X-Error-Code, in our words.
_CODES = {
    "RepoNotFound": "there is no such repository, or it is private",
    "RevisionNotFound": "the repository has no such revision",
    "EntryNotFound": "the revision has no such file",
    "GatedRepo": "access is restricted: ask for it on the repository's page",
}
_LATE = "the whole answer did not come in time"
_UNSAFE = "redirects to an address from which nothing is fetched (none, one in plain text, or one that is no address)"
_STATUSES = {
    401: "there is no such repository, or it needs a token",
    403: "access is restricted: ask for it on the repository's page",
    404: "there is no such repository, revision or file",
    416: "the file that it serves is shorter than the one that it lists",
}

_Answer = TypeVar("_Answer")


class _AgainError(Exception):
    """An attempt that failed in a way in which another may not; `wait` is when the server wants to see it."""

    def __init__(self, why: str, wait: float | None = None) -> None:
        super().__init__(why)
        self.why, self.wait = why, wait


class Transport:
    """One hub, its connections and the token that it is shown. Safe to use from several threads."""

    def __init__(self, settings: Settings, token: str, connections: int) -> None:
        self._settings, self._token = settings, token
        self._origin = _origin(settings.endpoint)
        self._connections = connections
        self._pools: dict[str, urllib3.PoolManager] = {}
        self._lock = Lock()
        self._moved: dict[str, str] = {}  # where a file was found last: an address that runs out in an hour or so

    def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            pool.clear()

    def document(self, path: str, what: str, largest: int) -> bytes:
        """A whole document of the hub, of at most `largest` bytes."""

        def take(response: urllib3.BaseHTTPResponse, until: float) -> bytes:
            if response.status != 200:
                raise RequestError(f"{what}: the hub answers {response.status}, which means nothing here")
            data = _read(response, largest + 1, until, exact=False)
            if len(data) > largest:
                raise RequestError(f"{what}: the hub's answer is longer than {largest:,} bytes")
            return data

        return self._persist(path, {}, what, take, self._settings.patience)

    def part(self, path: str, what: str, asked: Range) -> bytes:
        """Some bytes of a file, and no byte more."""

        def take(response: urllib3.BaseHTTPResponse, until: float) -> bytes:
            check(asked, response.status, response.headers, what)
            data = _read(response, asked.length, until, exact=True)
            if response.read1(1):  # also lets the connection be used again
                raise RequestError(f"{what}: the server sends more bytes than it announced")
            return data

        patience = self._settings.patience + asked.length / _SLOWEST
        return self._persist(path, {"Range": asked.header}, what, take, patience)

    def _persist(
        self, path: str, headers: dict[str, str], what: str,
        take: Callable[[urllib3.BaseHTTPResponse, float], _Answer], patience: float,
    ) -> _Answer:  # fmt: skip
        """Try until it succeeds, is refused, or has taken as long as it may."""
        url, until = self._settings.endpoint + path, time.monotonic() + patience
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return _within(until, lambda: self._attempt(url, headers, what, take, until))
            except _AgainError as error:
                wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (attempt - 1)) * random.uniform(0.75, 1)
                wait = wait if error.wait is None else error.wait
                left = until - time.monotonic()
                if attempt == ATTEMPTS or wait >= left:
                    tried = f"after {attempt} attempt{'s' * (attempt > 1)}"
                    later = f", and asks to wait {error.wait:.0f} seconds" if error.wait else ""
                    raise RequestError(f"{what}: {error.why} ({tried}){later}: try again later") from error
                time.sleep(wait)
        raise AssertionError("every attempt returns or raises")

    def _attempt(
        self, url: str, headers: dict[str, str], what: str,
        take: Callable[[urllib3.BaseHTTPResponse, float], _Answer], until: float,
    ) -> _Answer:  # fmt: skip
        """Ask once, where the file is."""
        place = self._moved.get(url, url)
        known = place != url
        for _ in range(_REDIRECTS + 1):
            response = self._send(place, headers, what)
            try:
                if response.status in _MOVED:
                    place = self._next(place, response, what)
                    continue
                if known and response.status not in (200, 206):
                    self._moved.pop(url, None)
                    raise _AgainError("the address that the hub gave has run out", wait=0)
                self._refuse(response, what, place)
                answer = take(response, until)
                if place != url:
                    self._moved[url] = place
                return answer
            except failures.HTTPError as error:
                raise self._failure(error, place, what) from error
            finally:
                response.close()
        raise RequestError(f"{what}: the hub redirects more than {_REDIRECTS} times: is HF_ENDPOINT right?")

    def _send(self, url: str, headers: dict[str, str], what: str) -> urllib3.BaseHTTPResponse:
        headers = {"User-Agent": f"blockaudit/{__version__}", "Accept-Encoding": "identity", **headers}
        if self._token and _origin(url) == self._origin:
            headers["Authorization"] = f"Bearer {self._token}"
        seconds = self._settings.timeout
        try:
            return self._pool(url).request(
                "GET", url, headers=headers, redirect=False, retries=False, preload_content=False,
                timeout=urllib3.Timeout(connect=seconds, read=seconds),
            )  # fmt: skip
        except failures.HTTPError as error:
            raise self._failure(error, url, what) from error

    def _pool(self, url: str) -> urllib3.PoolManager:
        """The connections to use for a URL: through the proxy that the environment names, or straight."""
        parts = urlsplit(url)
        proxy = "" if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme, "")
        proxy = f"http://{proxy}" if proxy and "://" not in proxy else proxy
        with self._lock:
            if proxy not in self._pools:
                self._pools[proxy] = self._new_pool(proxy)
            return self._pools[proxy]

    def _new_pool(self, proxy: str) -> urllib3.PoolManager:
        if not proxy:
            return urllib3.PoolManager(maxsize=self._connections)
        parts = urlsplit(proxy)
        login = f"{parts.username}:{parts.password or ''}" if parts.username else None
        headers = urllib3.make_headers(proxy_basic_auth=login)
        try:
            return urllib3.ProxyManager(proxy, maxsize=self._connections, proxy_headers=headers)
        except failures.HTTPError as error:
            raise RequestError("the environment's proxy is none that can be used: expected http://host:port") from error

    def _next(self, url: str, response: urllib3.BaseHTTPResponse, what: str) -> str:
        """Where a redirect leads."""
        try:
            place = urljoin(url, response.headers.get("Location", ""))
            sound = place != url and _origin(place)[0] in (
                ("https",) if url.startswith("https:") else ("https", "http")
            )
        except (ValueError, KeyError):
            place, sound = "", False
        if not sound:
            raise RequestError(f"{what}: {_host(url)} {_UNSAFE}")
        response.read(_STEP)  # a short body, so that the connection can be used again
        return place

    def _refuse(self, response: urllib3.BaseHTTPResponse, what: str, url: str) -> None:
        """Raises for every status that is no answer."""
        status = response.status
        if status in (200, 206):
            return
        if status in _RETRIED:
            raise _AgainError(f"{_host(url)} answers {status}", _retry_after(response))
        why = _CODES.get(response.headers.get("X-Error-Code", "")) or _STATUSES.get(status)
        advice = ""
        if status in (401, 403) and _origin(url) == self._origin:
            advice = ", and the token that was shown does not open it" if self._token else ": set HF_TOKEN"
        raise RequestError(f"{what}: {_host(url)} answers {status}" + (f": {why}{advice}" if why else ""))

    def _failure(self, error: failures.HTTPError, url: str, what: str) -> Exception:
        """A failure of the connection: worth another attempt, or not."""
        host = _host(url)
        if isinstance(error, failures.SSLError):
            return RequestError(f"{what}: the certificate of {host} is not accepted (SSL_CERT_FILE names others)")
        if isinstance(error, failures.LocationValueError):
            return RequestError(f"{what}: {host} {_UNSAFE}")
        if isinstance(error, failures.NameResolutionError):
            return _AgainError(f"the name of {host} cannot be resolved")
        if isinstance(error, failures.NewConnectionError | failures.ProxyError):
            return _AgainError(f"{host} cannot be reached")
        if isinstance(error, failures.TimeoutError):
            return _AgainError(f"{host} is silent for {self._settings.timeout:g} seconds")
        return _AgainError(f"{host} dropped the connection")


def _within(until: float, call: Callable[[], _Answer]) -> _Answer:
    """`call`, given up at a moment: resolving a name and dripping headers know no timeout of their own."""
    box: SimpleQueue[tuple[_Answer, None] | tuple[None, BaseException]] = SimpleQueue()

    def work() -> None:
        try:
            box.put((call(), None))
        except BaseException as error:
            box.put((None, error))

    Thread(target=work, daemon=True).start()
    try:
        answer, error = box.get(timeout=max(until - time.monotonic(), 0.01))
    except Empty:
        raise _AgainError(_LATE) from None
    if error is not None:
        raise error
    return answer  # pyright: ignore[reportReturnType]


def _read(response: urllib3.BaseHTTPResponse, length: int, until: float, *, exact: bool) -> bytes:
    """`length` bytes of the body; fewer where it ends first and need not be `exact`."""
    data = bytearray()
    while len(data) < length:
        if time.monotonic() > until:
            raise _AgainError(_LATE)
        more = response.read1(min(_STEP, length - len(data)))
        if not more:
            break
        data += more
    if exact and len(data) < length:
        raise _AgainError(f"the connection ended after {len(data):,} of {length:,} bytes")
    return bytes(data)


def _retry_after(response: urllib3.BaseHTTPResponse) -> float | None:
    given = response.headers.get("Retry-After")
    if given is None:
        return None
    try:
        return float(urllib3.Retry().parse_retry_after(given))
    except (failures.InvalidHeader, OverflowError, ValueError):
        return None


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme]


def _host(url: str) -> str:
    """A URL as it may be shown: a signed address holds a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
