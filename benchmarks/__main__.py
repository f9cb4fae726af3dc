"""`python -m benchmarks`: check what the audit of large checkpoints says, then how long it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.results import GRAPH_MEGABYTES, GRAPH_RATIO, Cost, Row, Speed, costs, document, speeds, table
from benchmarks.timing import ROOT, ROUNDS, Runs, ratio, side_by_side

HERE = ROOT / "benchmarks"
TINY = str(ROOT / "fixtures" / "tiny_llama")
GRAPH_ROUNDS = 5
EMPTY = [str(HERE / "empty_typer.py")]


def main() -> int:
    """Exit status: 1 where a limit is missed or an audit says something else than it should."""
    with TemporaryDirectory(prefix="blockaudit-bench-") as folder:
        at = Path(folder)
        # In a process of its own: a child's peak memory is never below that of the process that starts it.
        check = subprocess.run(
            [sys.executable, "-m", "benchmarks.checks", folder], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        if check.returncode != 0:
            return 1
        rows = [*_large("DeepSeek-V3", at / "deepseek"), *_large("LLaMA-3-70B", at / "llama"), *_small()]
        rows += _graph("LLaMA-3-70B", at / "llama", at / "cache")
    compared = [Cost(**row) for row in _apart("conform")]
    converted = [Speed(**row) for row in _apart("convert")]
    print(table(rows), costs(compared), speeds(converted), sep="\n\n")
    (HERE / "RESULTS.md").write_text(document(rows, compared, converted, check.stdout.splitlines(), ROUNDS))
    return 0 if all(row.kept for row in (*rows, *compared, *converted)) else 1


def _apart(name: str) -> list[dict[str, Any]]:
    """The rows of a benchmark that has a process of its own: what that imports and holds weighs on no other."""
    run = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if not run.stdout:
        raise SystemExit(f"benchmarks.{name}: exit {run.returncode}")
    return json.loads(run.stdout.splitlines()[-1])


def _inspect(source: str, form: str) -> list[str]:
    return ["-m", "blockaudit", "inspect", source, "--format", form]


def _large(name: str, source: Path) -> Iterator[Row]:
    commands = {
        "headers": [str(HERE / "floor.py"), str(source)],
        "empty": EMPTY,
        "inspect": _inspect(str(source), "json"),
    }
    runs = side_by_side(commands)
    yield _row(f"inspect {name} --format json", runs["inspect"], "headers + Typer", runs["headers"], runs["empty"])


def _graph(name: str, source: Path, cache: Path) -> Iterator[Row]:
    """The graph level by what it has to import and build; and from the cache by the headers level."""
    graph = [*_inspect(str(source), "json"), "--level", "graph"]
    commands = {
        "build": [str(HERE / "meta_build.py"), str(source)],
        "cold": graph,
        "warm": graph,
        "headers": _inspect(str(source), "json"),
    }
    offline = {"HF_HUB_OFFLINE": "1"}
    settings = {
        "build": offline,
        "cold": {**offline, "BLOCKAUDIT_CACHE": "off"},
        "warm": {**offline, "BLOCKAUDIT_CACHE": "on", "BLOCKAUDIT_CACHE_DIR": str(cache)},
    }
    runs = side_by_side(commands, GRAPH_ROUNDS, settings)
    for which, floor, under in (("cold", "meta build", runs["build"]), ("warm", "inspect, headers", runs["headers"])):
        row = _row(f"inspect {name} --level graph, {which}", runs[which], floor, under)
        yield replace(row, largest_ratio=GRAPH_RATIO, most_megabytes=GRAPH_MEGABYTES)


def _small() -> Iterator[Row]:
    runs = side_by_side({"empty": EMPTY, "text": _inspect(TINY, "text"), "json": _inspect(TINY, "json")}, 2 * ROUNDS)
    for form in ("text", "json"):
        yield _row(f"inspect tiny_llama --format {form}", runs[form], "Typer", runs["empty"])


def _row(what: str, mine: Runs, floor: str, *others: Runs) -> Row:
    under = sum(run.median for run in others)
    return Row(what, 1000 * mine.median, floor, 1000 * under, ratio(mine, *others), mine.megabytes)


if __name__ == "__main__":
    sys.exit(main())
