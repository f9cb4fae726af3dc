from __future__ import annotations

from pathlib import Path

import pytest

from blockaudit.cli.main import run
from tests.support.quantise import compressed, llama

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.parametrize("command", [["conform"], ["trace", "record", "--out", "{folder}/trace.safetensors"]])
def test_numbers_are_compared_plain(tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    source = llama(compressed())(tmp_path / "ckpt")
    status = run([*(part.format(folder=tmp_path) for part in command), str(source)])
    assert status == 2
    assert "14 of its weights are quantised (pack-quantized): dequantise" in capsys.readouterr().err
