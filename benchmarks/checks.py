"""`python -m benchmarks.checks FOLDER`: write the large checkpoints, and see that the audit says what it should."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import deepseek, faults, llama
from benchmarks.sparse import write
from blockaudit import inspect


def checks(at: Path) -> Iterator[str]:
    """Write the sound checkpoints, and hold the audit to them and to every fault."""
    sound = deepseek.layout()
    for name, layout in (("deepseek", sound), ("llama", llama.layout())):
        report = inspect(write(at / name, layout))
        if report.verdict != "accepted" or faults.named(report.findings):
            raise SystemExit(f"{name}: {report.verdict}: {[f.message for f in report.findings]}")
        yield f"{name}, sound: accepted"
    for fault in faults.FAULTS:
        layout = sound.copy()
        fault.plant(layout)
        found = faults.named(inspect(write(at / "fault", layout)).findings)
        if found != fault.expected(layout):
            raise SystemExit(f"{fault.name}: found {sorted(name for name, _ in found)}")
        yield f"{fault.name}: {', '.join(sorted(name for name, _ in found))}"


if __name__ == "__main__":
    for line in checks(Path(sys.argv[1])):
        print(line)
