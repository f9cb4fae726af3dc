"""Checkpoints that no numbers are run of: each is told so, as a fault of its own or of the request."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from blockaudit.cli.main import run
from tests.support.quantise import compressed, llama

pytest.importorskip("torch")
pytest.importorskip("transformers")

TINY = Path(__file__).parents[2] / "fixtures" / "tiny_llama"


@pytest.mark.parametrize("command", [["conform"], ["trace", "record", "--out", "{folder}/trace.safetensors"]])
def test_numbers_are_compared_plain(tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    source = llama(compressed())(tmp_path / "ckpt")
    status = run([*(part.format(folder=tmp_path) for part in command), str(source)])
    assert status == 2
    assert "14 of its weights are quantised (pack-quantized): dequantise" in capsys.readouterr().err


@pytest.fixture
def too_deep(tmp_path: Path) -> Path:
    """A checkpoint whose config.json speaks of a layer that it lacks."""
    shutil.copytree(TINY, tmp_path / "model")
    config = json.loads((TINY / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 5}))
    return tmp_path / "model"


def test_a_layer_that_is_not_stored_is_a_rejection_of_conform(
    too_deep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["conform", str(too_deep), "--format", "json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [f["name"] for f in report["findings"]] == ["layer-count-mismatch"]
    assert (report["kind"], report["level"], report["verdict"]) == ("conformance", "trace", "rejected")
    assert "conformance" not in report


def test_and_no_trace_is_recorded_of_it(too_deep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "record", "--out", str(tmp_path / "trace.safetensors"), str(too_deep)]) == 2
    assert "it cannot be run: C104 layer-count-mismatch" in capsys.readouterr().err
    assert not (tmp_path / "trace.safetensors").exists()
