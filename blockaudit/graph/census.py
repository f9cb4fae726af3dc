"""Every text model type of the installed transformers, read, rebuilt from what was read, and listed.

    python -m blockaudit.graph.census [--output docs/census.md] [TYPE...]

A type is `confirmed` where every stack rebuilt from its equation gives the model's logits, `unclassified` where it was
not read or where the rebuild contradicts the reading: no equation is shown that the rebuild did not confirm.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer
from typing import Any, cast

# Entries to a process, and the most seconds that one may take.
CHUNK, SECONDS = 24, 25
_MAPPINGS = (
    ("causal", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    ("masked", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    ("seq2seq", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
)
_HEAD = ("type", "class", "equation of a layer", "norms, epsilon and its config key", "remarks", "verdict")


def entries() -> list[tuple[str, str, str]]:
    """(task, model type, class) of every entry that the installed transformers lists."""
    from transformers.models.auto import modeling_auto

    found: list[tuple[str, str, str]] = []
    for task, name in _MAPPINGS:
        for model_type, classes in cast("dict[str, Any]", getattr(modeling_auto, name)).items():
            found += [(task, model_type, c) for c in ([classes] if isinstance(classes, str) else classes)]
    return found


def chunk(listed: list[tuple[str, str, str]], tell: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
    """The rows of some entries from a process of their own; one that kills it is said so, and the rest goes on."""
    rows: list[dict[str, Any]] = []
    while len(rows) < len(listed):
        for row in _process(listed[len(rows) :]):
            rows.append(row)
            tell(row)
        if len(rows) < len(listed):
            task, model_type, cls = listed[len(rows)]
            died = "the process died, or ran out of time"
            rows.append({"task": task, "type": model_type, "class": cls, "verdict": "not run", "reason": died})
            tell(rows[-1])
    return rows


def _process(left: list[tuple[str, str, str]]) -> Iterator[dict[str, Any]]:
    """Rows as they come, until the process ends by itself or is ended."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "blockaudit.graph.specimen", json.dumps(left)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=env, text=True, **pipes) as process:
        timer = Timer(SECONDS + SECONDS * len(left), process.kill)
        timer.start()
        for line in process.stdout or ():
            if line.startswith('{"'):
                yield json.loads(line)
        timer.cancel()


def census(listed: list[tuple[str, str, str]], tell: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
    """A row for each entry, in the order given; each is told of as soon as it is there."""

    def run(part: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
        return chunk(part, tell)

    parts = [listed[i : i + CHUNK] for i in range(0, len(listed), CHUNK)]
    with ThreadPoolExecutor(max(os.cpu_count() or 1, 1)) as pool:
        return [row for rows in pool.map(run, parts) for row in rows]


def table(rows: list[dict[str, Any]], version: str) -> str:
    """The census as Markdown."""
    counts = Counter(shown(r) for r in rows)
    ran = len(rows) - counts["not run"]
    lines = [
        "# Census of the text models of transformers",
        "",
        f"Written by `python -m blockaudit.graph.census` with transformers {version}; do not edit.",
        "",
        f"{len(rows)} entries; {ran} ran. Confirmed: {counts['confirmed']}. Unclassified: {counts['unclassified']}, "
        f"{sum(r['verdict'] == 'contradicted' for r in rows)} of them read in a way that the rebuild contradicts. "
        f"Not run: {counts['not run']}.",
        "",
        "`h` is the state, `f(h)` a branch. Confirmed: tiny random weights, every stack rebuilt in FP64 from the "
        "equation shown with norms of our own, gives the logits that the model gives on fresh tokens.",
    ]
    for task, _ in _MAPPINGS:
        mine = [r for r in rows if r["task"] == task]
        if mine:
            lines += ["", f"## {task}", "", f"| {' | '.join(_HEAD)} |", f"|{' --- |' * len(_HEAD)}"]
            lines += [_line(r) for r in mine]
    return "\n".join(lines) + "\n"


def shown(row: dict[str, Any]) -> str:
    """The verdict that is published: what the rebuild contradicts is no reading."""
    return "unclassified" if row["verdict"] in ("contradicted", "not read") else row["verdict"]


def _line(row: dict[str, Any]) -> str:
    good = row["verdict"] == "confirmed"
    cells = [
        row["type"],
        row["class"],
        "<br>".join(f"`{e}`" for e in row.get("equations", [])) if good else "",
        "<br>".join(row.get("norms", [])) if good else "",
        "<br>".join(row.get("oddities", [])),
        "confirmed" if good else f"{shown(row)}: {row.get('reason', '')}",
    ]
    return "| " + " | ".join(c.replace("|", "/") for c in cells) + " |"


def _tell(row: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def main() -> None:
    """Run the census and write the table."""
    import transformers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="where the Markdown goes (default: standard output)")
    parser.add_argument("--json", type=Path, help="rows as JSON lines, as they come, with what a contradiction said")
    parser.add_argument("types", nargs="*", help="model types (default: all)")
    options = parser.parse_args()
    listed = [e for e in entries() if not options.types or e[1] in options.types]
    began = time.monotonic()
    rows = census(listed, lambda row: _tell(row, options.json))
    text = table(rows, transformers.__version__)
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    else:
        print(text)
    print(Counter(r["verdict"] for r in rows), f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
