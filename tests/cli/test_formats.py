"""Every format through the command line: on stdout, and into files by their suffix."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from blockaudit.cli.main import run
from blockaudit.report.formats import available

TINY = Path(__file__).parents[2] / "fixtures" / "tiny_llama"


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    shutil.copytree(TINY, tmp_path / "broken")
    weights = tmp_path / "broken" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    monkeypatch.chdir(tmp_path)
    return "broken"


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("github", "::error file=broken/model.safetensors,title=F102 truncated-file::"),
        ("sarif", '"ruleId": "F102"'),
        ("junit", 'type="F102 truncated-file"'),
        ("markdown", "| error | F102 truncated-file | `model.safetensors`<br>`broken/model.safetensors` |"),
    ],
)
def test_on_stdout(broken: str, form: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", broken, "--format", form]) == 1
    assert said in capsys.readouterr().out


def test_files_by_suffix_and_several_sources(broken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"audit.{suffix}" for suffix in ("sarif", "xml", "md", "json")]
    options = [word for name in names for word in ("--report", name)]
    assert run(["inspect", str(TINY), broken, "--format", "sarif", *options]) == 1
    log = json.loads(capsys.readouterr().out)
    assert log == json.loads((tmp_path / "audit.sarif").read_text())
    assert [r["properties"]["verdict"] for r in log["runs"]] == ["accepted", "rejected"]
    assert len(ElementTree.parse(tmp_path / "audit.xml").getroot()) == 2
    assert (tmp_path / "audit.md").read_text(encoding="utf-8").count("## ") == 3


def test_help_names_every_suffix() -> None:
    from blockaudit.cli import options

    (said,) = [one.help for one in options.ReportPaths.__metadata__]
    assert {form.suffix for form in available().values() if form.suffix} <= set(re.findall(r"\.\w+", said))
