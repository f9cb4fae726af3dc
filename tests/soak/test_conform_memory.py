"""A checkpoint four times larger than the memory that the process may have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.conform_large import Shape, write
from benchmarks.timing import ROOT

pytestmark = [pytest.mark.soak, pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS and /proc")]

# MB of address space; the imports alone take about 700 of them.
LIMIT = 2048
SHAPE = Shape(layers=21)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """21 layers of the 7B model's width in bfloat16, 9.0 GB."""
    return write(tmp_path_factory.mktemp("large") / "model", SHAPE)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("mode", ["layer", "all"])
def test_four_times_the_limit(folder: Path, mode: str) -> None:
    assert SHAPE.bytes >= 4 * (LIMIT << 20)
    size = ["--batch", "1", "--seq-len", "16", "--device", "cpu"]
    command = [sys.executable, "-m", "benchmarks.conform_memory", str(LIMIT), str(folder), "--mode", mode, *size]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    assert run.returncode == 0, run.stderr[-2000:]
    told = json.loads(run.stdout.splitlines()[-1])
    layers = ((told["peak"]["resident"] - told["imports"]["resident"]) << 20) / SHAPE.layer_bytes
    print(f"--mode {mode}: {told}: {layers:.1f} layers of {SHAPE.layer_bytes / 1e6:.0f} MB")
    # This layer and the next one, the graph of all layers, states, one part of a matrix widened.
    assert layers < 3
