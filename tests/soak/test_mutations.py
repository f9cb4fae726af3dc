"""A hundred thousand spoilt inputs through whole audits, and five hundred through processes that are watched.

Each ends in a verdict or in one clear line, in two seconds of work and 256 MB, whatever the bytes are; nothing in them
is run and nothing else is opened. The counts are printed (`-s`).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.soak.inputs import Kind, copied, kinds, prepare
from tests.support.watch import ROOT, watch

IN_PROCESS = 100_000
WATCHED = 500
WORKERS = 2
SLOWEST = 2.0  # seconds of processor time
MEMORY = 256 << 20
STATUSES = {0, 1, 2, 3}
# One in so many is read to its last number, and shown in another format than JSON.
_VALUES, _SHOWN = 7, 5
_FORMATS = ("text", "markdown", "github", "html", "sarif", "junit")


@dataclass
class Tally:
    """What a worker met."""

    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    slowest: tuple[float, str] = (0.0, "")
    wrong: list[str] = field(default_factory=list)


def answered(kind: Kind, folder: Path, seed: int) -> tuple[int, str, str, str]:
    """How the input of a seed was made, and the audit's status, output and complaint."""
    from blockaudit.cli.main import run

    how, raw = kind.make(seed)
    (folder / kind.file).write_bytes(raw)
    line = kind.line(folder)
    form = _FORMATS[seed // _SHOWN % len(_FORMATS)] if seed % _SHOWN == 0 else "json"
    named = form == "json" or "--config" not in line
    line += ["--format", form] * named + ["--level", "values"] * (seed % _VALUES == 0 and named)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(line)
    # What is kept is what was answered as nothing before: findings and words, with their numbers left out.
    said = err.getvalue() + "".join(re.findall(r'"(?:message|name)": "(.*?)"', out.getvalue()))
    kind.learn(raw, (status, re.sub(r"\d+|'[^']*'", "#", said)[:400]))
    return status, how, out.getvalue(), err.getvalue()


def wrong(status: int, out: str, err: str, seconds: float) -> str:
    """What must not happen; empty where nothing did."""
    if status not in STATUSES or "Traceback" in err or "internal error" in err:
        return f"status {status}: {err[-1500:]}"
    complained = err.count("blockaudit: error:")
    if complained != (status == 2) or "\x1b" in out + err:
        return f"status {status} with {complained} complaints: {err[-500:]!r}"
    return f"{seconds:.1f} s" if seconds > SLOWEST else ""


def work(source: Path, folder: Path, first: int, count: int) -> Tally:
    """Audit the inputs of `count` seeds from `first` on, all kinds in turn, with 256 MB beyond what the start took."""
    tally, all_kinds = Tally(), kinds(source)
    folders = {kind.name: copied(kind, source, folder) for kind in all_kinds}
    for kind in all_kinds:  # what is imported is not counted
        for seed in range(_SHOWN * len(_FORMATS)):
            answered(kind, folders[kind.name], seed)
    limit = _size("VmSize") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    for seed in range(first, first + count):
        kind = all_kinds[seed % len(all_kinds)]
        began = time.process_time()
        try:
            status, how, out, err = answered(kind, folders[kind.name], seed)
            fault = wrong(status, out, err, time.process_time() - began)
        except BaseException as error:
            status, how, fault = -1, "", f"{type(error).__name__}: {error}"
        seconds = time.process_time() - began
        tally.kinds[f"{kind.name} {how}"] += 1
        tally.statuses[str(status)] += 1
        tally.slowest = max(tally.slowest, (seconds, f"{kind.name} {seed}"))
        if fault:
            raw = (folders[kind.name] / kind.file).read_bytes()
            (folder / f"{kind.name}-{seed}").write_bytes(raw)
            tally.wrong.append(f"{kind.name} {seed}: {fault}")
    tally.answers = sum(len(kind.answers) for kind in all_kinds)
    return tally


def _size(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    prepare(folder)
    return folder


_WORKER = "import sys; from tests.soak import test_mutations as t; t.worker(*sys.argv[1:])"


def worker(source: str, folder: str, first: str, count: str) -> None:
    """A process of its own: what it may allocate is limited, and pytest and torch are not in it."""
    tally = work(Path(source), Path(folder), int(first), int(count))
    told = {**vars(tally), "peak": _size("VmHWM")}
    sys.stdout.write(json.dumps(told))


def _in_process(source: Path, folder: Path, first: int, count: int) -> dict[str, Any]:
    folder.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", _WORKER, str(source), str(folder), str(first), str(count)]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS and /proc")
def test_a_hundred_thousand_spoilt_inputs(source: Path, tmp_path: Path) -> None:
    share = int(os.environ.get("BLOCKAUDIT_SOAK_INPUTS", IN_PROCESS)) // WORKERS
    with ThreadPoolExecutor(WORKERS) as pool:
        told = list(pool.map(lambda n: _in_process(source, tmp_path / str(n), 1000 + n * share, share), range(WORKERS)))
    by_kind, statuses = Counter[str](), Counter[str]()
    for tally in told:
        by_kind.update(tally["kinds"])
        statuses.update(tally["statuses"])
    print(f"\n{sum(by_kind.values()):,} inputs in process: {dict(sorted(by_kind.items()))}")
    print(f"exit statuses: {dict(sorted(statuses.items()))}; answers of their own: {[t['answers'] for t in told]}")
    print(f"slowest: {max(t['slowest'] for t in told)} s; peak: {max(t['peak'] for t in told) / 1e6:.0f} MB resident")
    faults = [fault for tally in told for fault in tally["wrong"]]
    assert faults == [], f"{len(faults)} in {tmp_path}: " + "\n".join(faults[:20])
    assert {"0", "1", "2", "3"} == statuses.keys()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_five_hundred_through_processes_that_are_watched(source: Path, tmp_path: Path) -> None:
    count = int(os.environ.get("BLOCKAUDIT_SOAK_PROCESSES", WATCHED))
    all_kinds = kinds(source)
    away = tmp_path / "away"
    (away / ".git").mkdir(parents=True)
    folders = {kind.name: copied(kind, source, tmp_path) for kind in all_kinds}
    canary = os.fsencode(away / "CANARY")
    by_kind, statuses = Counter[str](), Counter[int]()
    slowest, largest = (0.0, ""), (0.0, "")
    for seed in range(count):
        kind = all_kinds[seed % len(all_kinds)]
        folder = folders[kind.name]
        how, raw = kind.make(seed)
        (folder / kind.file).write_bytes(raw.replace(b"CANARY", canary))
        before = sorted(os.listdir(folder))
        (seen,) = watch([kind.line(folder)], away)
        name = f"{kind.name} {seed}"
        assert seen.status in STATUSES, name
        assert (seen.outside(folder), seen.deeds) == ([], ()), name
        assert sorted(os.listdir(folder)) == before, name
        assert seen.seconds < SLOWEST, name
        assert seen.peak < MEMORY, name
        by_kind[f"{kind.name} {how}"] += 1
        statuses[seen.status] += 1
        slowest, largest = max(slowest, (seen.seconds, name)), max(largest, (seen.peak / 1e6, name))
    assert os.listdir(away) == [".git"]
    print(f"\n{count} processes: {dict(sorted(by_kind.items()))}")
    print(f"exit statuses: {dict(sorted(statuses.items()))}; slowest: {slowest} s; largest: {largest} MB resident")
