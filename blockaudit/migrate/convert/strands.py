"""Hashing beside copying: chunks that several consumers share, and work that keeps its order on many threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

# Bytes of a chunk: what a core's cache holds while it is read, hashed and written.
CHUNK = 1 << 20
# Chunks of one line of work that may wait for a hash.
WAITING = 24


class Chunk:
    """A buffer that goes back where it came from when all its users have let go."""

    def __init__(self, home: SimpleQueue[bytearray], buffer: bytearray, nbytes: int, users: int) -> None:
        self._home, self._buffer, self._users = home, buffer, users
        self._lock = threading.Lock()
        self.view = memoryview(buffer)[:nbytes]

    def let_go(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self._home.put(self._buffer)


class Buffers:
    """So many buffers and no more: who reads faster than others hash waits for one."""

    def __init__(self, count: int = WAITING) -> None:
        self._free: SimpleQueue[bytearray] = SimpleQueue()
        for _ in range(count):
            self._free.put(bytearray(CHUNK))

    def take(self, nbytes: int, users: int) -> Chunk:
        """A chunk of up to `CHUNK` bytes, for so many users."""
        return Chunk(self._free, self._free.get(), nbytes, users)


class Strand:
    """Calls that run one after the other, on whichever thread of a pool is free. The first that fails ends the rest."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._calls: deque[Callable[[bool], None]] = deque()
        self._lock = threading.Lock()
        self._running = False
        self._idle = threading.Event()
        self._idle.set()
        self.error: BaseException | None = None

    def submit(self, call: Callable[[bool], None]) -> None:
        """Run `call(failed)` after all before it; `failed` where one of those has: it then has only to let go."""
        with self._lock:
            self._calls.append(call)
            if self._running:
                return
            self._running = True
            self._idle.clear()
        self._pool.submit(self._drain)

    def wait(self) -> None:
        """Until nothing is left to do. Raises what a call raised."""
        self._idle.wait()
        if self.error is not None:
            raise self.error

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._running = False
                    self._idle.set()
                    return
                call = self._calls.popleft()
            try:
                call(self.error is not None)
            except BaseException as error:
                self.error = error
