"""Several ranks of one run (`torchrun`): one report, the same as one process gives; a rank that dies is told of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trace.clean import checkpoint

CANDIDATES = """
import os, signal
import torch
from transformers import AutoModelForCausalLM

def load(source, device, dtype):
    return AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="eager").to(device).eval()

def faulty(source, *, device, dtype):
    model = load(source, device, dtype)
    model.model.layers[1].input_layernorm.variance_epsilon = 1e-3
    return model

def killed(source, *, device, dtype):
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return load(source, device, dtype)

def raising(source, *, device, dtype):
    if os.environ["RANK"] == "1":
        raise OSError("no more memory")
    return load(source, device, dtype)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "candidates.py").write_text(CANDIDATES)
    return checkpoint(folder / "model", "llama")


def conform(model: Path, name: str, ranks: int, *argv: str) -> tuple[int, dict[str, Any]]:
    """Exit status and the JSON report of a run of so many ranks."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [
        *launch,
        "-m",
        "blockaudit",
        "conform",
        str(model),
        "--candidate",
        f"{model.parent}/candidates.py:{name}",
    ]
    done = subprocess.run(
        [*command, "--device", "cpu", "--dtype", "float32", "--seq-len", "16", "--format", "json", *argv],
        capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    start = done.stdout.find("{")
    return done.returncode, json.loads(done.stdout[start:]) if start >= 0 else {}


def test_two_ranks_tell_what_one_does(model: Path) -> None:
    one, two = (conform(model, "faulty", ranks, "--algebra") for ranks in (1, 2))
    assert one == two
    assert one[1]["verdict"] == "rejected"
    assert one[1]["conformance"]["first_divergence"]["site"] == "layers.1.self_attention.norm_in"


@pytest.mark.parametrize("name", ["killed", pytest.param("raising", marks=pytest.mark.soak)])
def test_a_rank_that_dies_leaves_a_report_that_says_so(model: Path, name: str) -> None:
    status, report = conform(model, name, 2)
    assert status != 0
    assert report["verdict"] == "unverified"
    assert [f["name"] for f in report["findings"]] == ["site-missing"]
    assert "rank" in report["conformance"]["unfinished"]
