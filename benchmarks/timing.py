"""Commands side by side: each round runs all of them once, so that a slow moment of the machine hits them alike."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 9


@dataclass(slots=True)
class Runs:
    """What the rounds of one command took: seconds, and the highest resident memory in MB."""

    seconds: list[float] = field(default_factory=lambda: list[float]())
    megabytes: float = 0.0

    @property
    def median(self) -> float:
        return median(self.seconds)


def side_by_side(
    commands: Mapping[str, Sequence[str]],
    rounds: int = ROUNDS,
    settings: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Runs]:
    """Every command `rounds` times, in turn, after one run that is not counted.

    settings: environment variables of single commands.
    """
    runs = {name: Runs() for name in commands}
    with _environment() as environment:
        for turn in range(rounds + 1):
            for name, command in commands.items():
                own = (settings or {}).get(name, {})
                seconds, megabytes = _once(command, {**environment, **own})
                if turn:
                    runs[name].seconds.append(seconds)
                    runs[name].megabytes = max(runs[name].megabytes, megabytes)
    return runs


def ratio(of: Runs, *over: Runs) -> float:
    """The median, over the rounds, of one command's time by the sum of the others' in the same round."""
    return median(a / sum(rest) for a, *rest in zip(of.seconds, *(r.seconds for r in over), strict=True))


@contextmanager
def _environment() -> Generator[dict[str, str]]:
    """An environment in which every command finds its modules compiled, as an installed program does."""
    with TemporaryDirectory() as folder:
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        yield kept | {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": folder}


def _once(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.stderr is not None
    with process.stderr as stderr:
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: exit {process.returncode}: {stderr.read().decode()}")
    return seconds, usage.ru_maxrss / (1024 * 1024 if sys.platform == "darwin" else 1024)
