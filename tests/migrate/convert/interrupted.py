"""Conversions that are ended from outside: in a process of their own, at a moment of the test's choosing."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from blockaudit.migrate.convert.run import Progress
from tests.migrate.convert import hand

# How a child ended that raised what it should not.
_BROKEN = 99


def in_child(call: Callable[[], int]) -> int:
    """Run `call` in a fork of this process, which has everything imported already. Returns the child's pid."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        os._exit(call())
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(_BROKEN)


def killed(call: Callable[[Progress], None], after: int, later: float) -> bool:
    """Kill a child (SIGKILL) so many bytes, and then seconds, into its conversion. False where it was faster."""
    told, tell = os.pipe()

    def inside() -> int:
        os.close(told)
        call(lambda _, done, __: os.write(tell, done.to_bytes(8, "little")) and None)
        return 0

    pid = in_child(inside)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        while (line := pipe.read(8)) and int.from_bytes(line, "little") < after:
            pass
        time.sleep(later)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), status
    return status != 0


def limited(call: Callable[[], int], file_size: int) -> int:
    """Run a child in which no file may become larger: a write behind that fails with EFBIG. Returns its exit status."""

    def inside() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
        return call()

    _, status = os.waitpid(in_child(inside), 0)
    return os.waitstatus_to_exitcode(status)


def whole_or_absent(target: Path, wanted: dict[str, str]) -> bool:
    """Whether TARGET is there, whole where it is; what stands beside it has no model's name before it is one."""
    there = target.exists()
    if there:
        assert hand.hashes(target) == wanted
    whole = hand.partial(target) / "whole"
    held = hand.hashes(whole) if whole.is_dir() else {}
    for name, sha256 in held.items():
        if name.endswith(".safetensors") or name == "config.json":
            assert sha256 == wanted[name], f"{name} has its final name and is not whole"
    if "config.json" in held:
        assert held == wanted, "a model that is not whole could be loaded"
    return there
