"""The transformers release that the specification pins for LLaMA and the installed one run the same operators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks import llama
from benchmarks.sparse import write
from tests.families import models

pytestmark = pytest.mark.soak

PINNED = "5.13.1"
LOOK = "import transformers; print(transformers.__version__)"


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the pinned release and what it needs; torch stays the installed one."""
    folder = tmp_path_factory.mktemp("pinned")
    asked = ["install", "--quiet", "--disable-pip-version-check", "--target", str(folder), f"transformers=={PINNED}"]
    done = subprocess.run([sys.executable, "-m", "pip", *asked], capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        pytest.skip(f"pip cannot fetch transformers {PINNED}: {said[-1] if said else done.returncode}")
    return folder


def _python(argv: list[str], path: Path | None, cache: Path) -> str:
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), **({"PYTHONPATH": str(path)} if path else {})}
    done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout


def _audited(source: Path, path: Path | None, cache: Path) -> tuple[str, dict[str, Any]]:
    """(release, report) of the graph level: of the release in `path`, else of the installed one."""
    report = _python(["-m", "blockaudit", "inspect", str(source), "--level", "graph", "--format", "json"], path, cache)
    return _python(["-c", LOOK], path, cache).strip(), json.loads(report)


def _rows(report: dict[str, Any], version: str) -> str:
    """The contract table, and where each value was read, with the release left out."""
    return json.dumps(report["contract"], indent=1, sort_keys=True).replace(version, "RELEASE")


def _small(folder: Path) -> Path:
    models.build("llama").save_pretrained(folder)
    return folder


def _fixture(_folder: Path) -> Path:
    return Path(__file__).parents[2] / "fixtures" / "tiny_llama"


def _real(folder: Path) -> Path:
    folder.mkdir()
    return write(folder, llama.layout())


@pytest.mark.parametrize("build", [_fixture, _small, _real], ids=["fixture", "grouped heads", "70B"])
def test_both_releases_execute_one_contract(build: Callable[[Path], Path], pinned: Path, tmp_path: Path) -> None:
    source = build(tmp_path / "checkpoint")
    new, installed = _audited(source, None, tmp_path / "cache")
    old, under = _audited(source, pinned, tmp_path / "cache")
    assert old == PINNED
    assert (under["verdict"], under["findings"]) == (installed["verdict"], installed["findings"])
    assert any(row["executed"] is not None for row in under["contract"])
    assert _rows(under, old) == _rows(installed, new)
