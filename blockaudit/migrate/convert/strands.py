"""Hashing beside copying: blocks that several consumers share, and work that keeps its order on many threads."""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

# Bytes of a block: what a core's cache holds while it is read, hashed and written.
BLOCK = 1 << 20
# Blocks of one file that may wait for a hash or for the disk.
WAITING = 24


class Block:
    """A buffer on a page of its own, which goes back where it came from when all its users have let go."""

    def __init__(self, home: SimpleQueue[memoryview], view: memoryview) -> None:
        self.view = view
        self._home = home
        self._users = 1
        self._lock = threading.Lock()

    def hold(self, users: int = 1) -> None:
        """So many users more."""
        with self._lock:
            self._users += users

    def let_go(self) -> None:
        """One user less."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self._home.put(self.view)


class Blocks:
    """So many blocks and no more: who reads faster than others hash waits for one."""

    def __init__(self, count: int = WAITING) -> None:
        self._free: SimpleQueue[memoryview] = SimpleQueue()
        for _ in range(count):
            self._free.put(memoryview(mmap.mmap(-1, BLOCK)))

    def take(self) -> Block:
        return Block(self._free, self._free.get())


class Strand:
    """Calls that run one after the other, on whichever thread of a pool is free. The first that fails ends the rest."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._calls: deque[tuple[Callable[[], None], Block | None]] = deque()
        self._lock = threading.Lock()
        self._running = False
        self._idle = threading.Event()
        self._idle.set()
        self.error: BaseException | None = None

    def submit(self, call: Callable[[], None], block: Block | None = None) -> None:
        """Run `call` after all before it, and let go of `block` then, or at once where one of those has failed."""
        with self._lock:
            self._calls.append((call, block))
            if self._running:
                return
            self._running = True
            self._idle.clear()
        self._pool.submit(self._drain)

    def check(self) -> None:
        """Raise what a call has raised."""
        if self.error is not None:
            raise self.error

    def wait(self) -> None:
        """Until nothing is left to do. Raises what a call raised."""
        self._idle.wait()
        self.check()

    def settle(self) -> None:
        """Until nothing is left to do, whatever came of it."""
        self._idle.wait()

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._running = False
                    self._idle.set()
                    return
                call, block = self._calls.popleft()
            try:
                if self.error is None:
                    call()
            except BaseException as error:
                self.error = error
            finally:
                if block is not None:
                    block.let_go()
