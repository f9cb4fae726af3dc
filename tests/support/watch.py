"""Command lines run in a process of their own, with every file that Python opens there written down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Audit events that change something, or that start or reach what is not this process.
_DEEDS = (
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.chmod", "os.chown", "os.truncate",
    "os.utime", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "subprocess.Popen", "socket.connect",
    "socket.bind", "shutil.copyfile", "shutil.rmtree", "pickle.find_class",
)  # fmt: skip
_SCRIPT = """
import json, os, sys
DEEDS, out, lines = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
from blockaudit.cli.main import run
from tests.support.memory import peak
events = []
def hook(event, args):
    if event == "open":
        path, mode, flags = args
        if not isinstance(path, int):
            wrote = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            events.append(["write" if wrote else "open", os.path.realpath(os.fsdecode(path))])
    elif event in DEEDS:
        events.append([event, repr(args)[:200]])
sys.addaudithook(hook)
told = []
for line in lines:
    del events[:]
    status = run(line)
    told.append([status, list(events)])
text = json.dumps([told, sum(os.times()[:2]), peak()])
os.write(int(out), text.encode())
"""


@dataclass(frozen=True)
class Watched:
    """What one command line did: its status, the files that it opened to read, and whatever else it did."""

    status: int
    opened: tuple[str, ...]
    deeds: tuple[tuple[str, str], ...]
    seconds: float  # of the processor, and bytes of memory at the most: of the whole process
    peak: int

    def outside(self, *folders: str | os.PathLike[str]) -> list[str]:
        """Files that were opened and lie neither in these folders nor in Python, its packages and this repository."""
        own = (sys.prefix, sys.base_prefix, ROOT, os.path.dirname(os.__file__), *folders)
        roots = tuple(os.path.join(os.path.realpath(folder), "") for folder in own)
        return [
            path for path in self.opened if not path.startswith(roots) and path not in map(os.path.realpath, folders)
        ]


def watch(lines: Sequence[Sequence[str]], cwd: Path) -> list[Watched]:
    """Run command lines one after the other in one process. An exception that leaves one fails here."""
    read, write = os.pipe()
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT), "BLOCKAUDIT_CACHE": "off"}
    argv = [sys.executable, "-c", _SCRIPT, json.dumps(_DEEDS), str(write), json.dumps([list(line) for line in lines])]
    process = subprocess.Popen(
        argv, cwd=cwd, env=environment, pass_fds=[write], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err[-3000:]
    assert "Traceback" not in err, err[-3000:]
    told: list[Any]
    told, seconds, peak = json.loads(text)
    return [
        Watched(
            status,
            tuple(p for e, p in events if e == "open"),
            tuple((e, p) for e, p in events if e != "open"),
            seconds,
            peak,
        )
        for status, events in told
    ]
