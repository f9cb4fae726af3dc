"""Draft and prove manifests of model types that the library has none of by hand, and write those that hold.

    python -m blockaudit.zoo [--output manifests/drafted] [--table docs/drafted.md] [TYPE...]

A manifest is written only where `prove` finds nothing; every other type is listed in the table with the reason.
`--index` alone writes the index by which a family is chosen, and drafts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from blockaudit import resources
from blockaudit.graph.census import entries
from blockaudit.zoo.index import write_index

# The most seconds that one type may take.
_SECONDS = 900


def main() -> None:
    """Draft, prove, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("manifests/drafted"), help="the folder of the manifests")
    parser.add_argument("--table", type=Path, help="where the list of all types goes, as Markdown")
    parser.add_argument("--index", action="store_true", help="write the index of what is there and draft nothing")
    parser.add_argument("types", nargs="*", help="model types (default: all that have no manifest made by hand)")
    options = parser.parse_args()
    if not options.index:
        rows = _drafted(_wanted(options.types), options.output)
        if options.table is not None:
            options.table.write_text(_table(rows), encoding="utf-8")
    write_index()


def _wanted(types: Iterable[str]) -> list[tuple[str, str]]:
    """(model type, class) of every entry without a manifest made by hand; of several classes the first."""
    asked, made = set(types), set(resources.handmade_ids())
    found: dict[str, str] = {}
    for _, model_type, class_name in sorted(entries(), key=lambda e: e[0] == "causal"):
        if model_type not in made and (not asked or model_type in asked):
            found.setdefault(model_type, class_name)
    return list(found.items())


def _drafted(wanted: list[tuple[str, str]], folder: Path) -> list[dict[str, Any]]:
    """A row for each type; manifests that hold are written, those that no longer do are taken away."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max(os.cpu_count() or 1, 1)) as pool:
        rows = list(pool.map(_one, *zip(*wanted, strict=True))) if wanted else []
    for row in rows:
        path = folder / f"{row['type']}.json"
        if row["manifest"] is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(json.dumps(row["manifest"], indent=1) + "\n", encoding="utf-8")
    return rows


def _one(model_type: str, class_name: str) -> dict[str, Any]:
    """Draft one type in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "blockaudit.zoo.one", model_type, class_name]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    failed: dict[str, Any] = {"type": model_type, "class": class_name, "manifest": None}
    try:
        done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {**failed, "reason": f"more than {_SECONDS} s"}
    row: dict[str, Any] = {**failed, "reason": "the process died"}
    for line in done.stdout.splitlines():
        if line.startswith('{"type"'):
            row = json.loads(line)
    print(model_type, row["reason"] or "holds", file=sys.stderr, flush=True)
    return row


def _table(rows: list[dict[str, Any]]) -> str:
    import transformers

    good = [r for r in rows if r["manifest"] is not None]
    lines = [
        "# Drafted manifests",
        "",
        f"Written by `python -m blockaudit.zoo` with transformers {transformers.__version__}; do not edit.",
        "",
        f"{len(good)} of {len(rows)} model types without a manifest made by hand have one that was drafted from the "
        "executed graph of their class and held on checkpoints of many configs. The others, with the reason:",
        "",
        "| type | class | reason |",
        "| --- | --- | --- |",
    ]
    bad = sorted((r for r in rows if r["manifest"] is None), key=lambda r: r["type"])
    lines += [f"| {r['type']} | {r['class']} | {r['reason'].replace('|', '/')} |" for r in bad]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
