"""V rules through `blockaudit conform`: for each a candidate that fires it, and the nearest that does not."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file, save_file

from blockaudit.cli.main import run
from tests.families import models

USER = """
from transformers import AutoModelForCausalLM

def clean(source, *, device, dtype):
    return AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="eager").to(device).eval()

def epsilon(source, **options):
    model = clean(source, **options)
    model.model.layers[1].input_layernorm.variance_epsilon = 1e-2
    return model

def nan(source, **options):
    model = clean(source, **options)
    mlp = model.model.layers[1].mlp
    own = mlp.forward
    mlp.forward = lambda x: own(x) / (x[..., :1] - x[..., :1])
    return model
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`model`: a tiny LLaMA; `large`: one whose states are so large that no token row shows its epsilon."""
    folder = tmp_path_factory.mktemp("conform")
    models.build("llama").save_pretrained(folder / "model")
    large = models.build("llama")
    with torch.no_grad():
        large.model.embed_tokens.weight.mul_(1000.0)
    large.save_pretrained(folder / "large")
    (folder / "user.py").write_text(USER, encoding="utf-8")
    return folder


def conform(source: Path, *argv: str, dtype: str = "float32") -> tuple[int, dict[str, Any]]:
    """Exit status and report of one run on the CPU."""
    out = io.StringIO()
    # A recorded trace brings its own tokens.
    trace = argv[:1] == ("--candidate",) and argv[1].endswith(".safetensors")
    size = [] if trace else ["--batch", "2", "--seq-len", "8"]
    asked = [str(source), "--device", "cpu", "--dtype", dtype, "--format", "json", *size, *argv]
    with contextlib.redirect_stdout(out):
        status = run(["conform", *asked])
    return status, json.loads(out.getvalue())


def named(report: dict[str, Any], severity: str = "error") -> set[str]:
    return {f["name"] for f in report["findings"] if f["severity"] == severity}


def recorded(folder: Path, source: str, dtype: str, *without: str) -> str:
    """A trace of the class itself, less some of its sites."""
    path = folder / f"{source}-{dtype}-{len(without)}.safetensors"
    conform(folder / source, "--trace-out", str(path), dtype=dtype)
    data = path.read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    kept = {key: tensor for key, tensor in load_file(str(path)).items() if key not in without}
    save_file(kept, str(path), metadata)
    return str(path)


def test_a_clean_candidate_fires_nothing(folder: Path) -> None:
    """The nearest twin of every case below."""
    status, report = conform(folder / "model", "--candidate", f"{folder / 'user.py'}:clean")
    assert (status, report["findings"]) == (0, [])
    assert report["kind"] == "conformance"
    assert report["conformance"]["first_divergence"] is None


def test_trace_divergence_fires(folder: Path) -> None:
    status, report = conform(folder / "model", "--candidate", f"{folder / 'user.py'}:epsilon")
    assert status == 1
    assert named(report) == {"trace-divergence", "epsilon-mismatch"}
    assert report["conformance"]["first_divergence"]["site"] == "layers.1.self_attention.norm_in"
    (finding,) = [f for f in report["findings"] if f["name"] == "epsilon-mismatch"]
    assert "measured as 0.01 in layer 1" in finding["message"]


def test_trace_non_finite_fires(folder: Path) -> None:
    status, report = conform(folder / "model", "--candidate", f"{folder / 'user.py'}:nan")
    assert status == 1
    assert {"trace-divergence", "trace-non-finite"} <= named(report)
    (finding,) = [f for f in report["findings"] if f["name"] == "trace-non-finite"]
    assert finding["subject"] == "layers.1.mlp.branch"


def test_site_missing_fires_on_a_trace_without_it(folder: Path) -> None:
    missing = [f"layers.{n}.mlp.norm_in" for n in range(3)]
    status, report = conform(folder / "model", "--candidate", recorded(folder, "model", "float32", *missing))
    assert status == 3
    assert (named(report), named(report, "warning")) == (set(), {"site-missing"})
    (finding,) = report["findings"]
    assert finding["subject"] == "layers.{l}.mlp.norm_in"
    assert "layers 0-2" in finding["message"]


def test_site_missing_does_not_fire_on_the_whole_trace(folder: Path) -> None:
    status, report = conform(folder / "model", "--candidate", recorded(folder, "model", "float32"))
    assert (status, report["findings"]) == (0, [])


def test_probe_insufficient_fires_on_a_trace_that_cannot_be_asked(folder: Path) -> None:
    trace = recorded(folder, "large", "bfloat16")
    status, report = conform(folder / "large", "--candidate", trace, dtype="bfloat16")
    assert status == 3
    assert (named(report), named(report, "warning")) == (set(), {"probe-insufficient"})


def test_probe_insufficient_does_not_fire_where_the_candidate_can_be_run(folder: Path) -> None:
    status, report = conform(folder / "large", dtype="bfloat16")
    assert (status, report["findings"]) == (0, [])
