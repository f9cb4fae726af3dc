"""Every text model type of the installed transformers, read, rebuilt from what was read, and listed.

    python -m blockaudit.graph.census [--output docs/census.md] [--json rows.jsonl] [--workers N] [TYPE...]

An equation is shown only where every stack rebuilt from it gives the model's logits; any other row says why not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Timer
from typing import Any, cast

from blockaudit.graph.census_table import table

Entry = tuple[str, str, str]
# The most seconds on the clock that one entry may take; a worker counts processor time itself and stops long before.
SECONDS = 600
_COMMAND = (sys.executable, "-W", "ignore", "-m", "blockaudit.graph.specimen")
_MAPPINGS = (
    ("causal", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    ("masked", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    ("seq2seq", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
)


def entries() -> list[Entry]:
    """(task, model type, class) of every entry that the installed transformers lists."""
    from transformers.models.auto import modeling_auto

    found: list[Entry] = []
    for task, name in _MAPPINGS:
        for model_type, classes in cast("dict[str, Any]", getattr(modeling_auto, name)).items():
            found += [(task, model_type, c) for c in ([classes] if isinstance(classes, str) else classes)]
    return found


class Worker:
    """A process that examines one entry at a time. One that dies or hangs is a row, and a new one is started."""

    def __init__(self, command: Sequence[str] = _COMMAND) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None

    def row(self, entry: Entry) -> dict[str, Any]:
        """The row of an entry."""
        process = self._process or self._start()
        timer = Timer(SECONDS, process.kill)
        timer.start()
        try:
            line = self._ask(process, entry)
        finally:
            timer.cancel()
        if line is not None:
            return cast("dict[str, Any]", json.loads(line))
        self.close()
        task, model_type, class_name = entry
        reason = "the process that ran it died, or took too long"
        return {"task": task, "type": model_type, "class": class_name, "verdict": "not run", "reason": reason}

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[str]:
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(self._command, env=env, text=True, **pipes)
        return self._process

    @staticmethod
    def _ask(process: subprocess.Popen[str], entry: Entry) -> str | None:
        """The line that answers; model code may print lines of its own before it. None where the process ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(entry) + "\n")
            process.stdin.flush()
        except OSError:
            return None
        return next((line for line in process.stdout if line.startswith('{"task"')), None)


def census(listed: list[Entry], tell: Callable[[dict[str, Any]], None], workers: int = 0) -> list[dict[str, Any]]:
    """A row for each entry, in the order given; each is told of as soon as it is there.

    workers: processes at once; 0 is one for each core.
    """
    count = min(workers or os.cpu_count() or 1, max(len(listed), 1))
    idle: SimpleQueue[Worker] = SimpleQueue()
    every = [Worker() for _ in range(count)]
    for worker in every:
        idle.put(worker)

    def examine(entry: Entry) -> dict[str, Any]:
        worker = idle.get()
        try:
            row = worker.row(entry)
        finally:
            idle.put(worker)
        tell(row)
        return row

    try:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(examine, listed))
    finally:
        for worker in every:
            worker.close()


def main() -> None:
    """Run the census and write the table."""
    import transformers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="where the Markdown goes (default: standard output)")
    parser.add_argument("--json", type=Path, help="rows as JSON lines, as they come, with the seconds that each took")
    parser.add_argument("--workers", type=int, default=0, help="processes at once (default: one for each core)")
    parser.add_argument("types", nargs="*", help="model types (default: all)")
    options = parser.parse_args()
    listed = [e for e in entries() if not options.types or e[1] in options.types]
    done: Counter[str] = Counter()

    def tell(row: dict[str, Any]) -> None:
        done[row["verdict"]] += 1
        said = f"[{done.total()}/{len(listed)}] {row['task']} {row['type']}: {row['verdict']}"
        print(f"{said}{': ' + row['reason'] if row['reason'] else ''}", file=sys.stderr, flush=True)
        if options.json is not None:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    text = table(census(listed, tell, options.workers), transformers.__version__)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text, encoding="utf-8")
    else:
        print(text)
    print(", ".join(f"{n} {verdict}" for verdict, n in sorted(done.items())), file=sys.stderr)


if __name__ == "__main__":
    main()
