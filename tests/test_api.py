"""`blockaudit.inspect`, as a script uses it."""

from __future__ import annotations

import inspect as introspection
import json
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

import blockaudit
from blockaudit.errors import RequestError
from tests.support import audit
from tests.support.checkpoint import config, drop, family, no_config

sound = family("llama")
broken = family("llama", drop("model.norm.weight"), config(layer_norm_eps=1e-3))


def test_what_it_offers() -> None:
    assert sorted(blockaudit.__all__) == ["Report", "__version__", "inspect"]
    with pytest.raises(AttributeError, match="no attribute 'convert'"):
        _ = blockaudit.convert  # type: ignore[attr-defined]


def test_it_answers_as_the_command_does(tmp_path: Path) -> None:
    source = broken(tmp_path)
    report, shown = blockaudit.inspect(source), audit.inspect(source)
    assert isinstance(report, blockaudit.Report)
    assert (report.verdict, report.exit_status) == ("rejected", shown.status) == ("rejected", 1)
    assert [f.name for f in report.findings] == shown.names == ["final-norm-missing", "config-field-unconsumed"]
    assert [f.expected for f in report.findings] == [f["expected"] for f in shown.findings]


def test_a_path_or_its_text(tmp_path: Path) -> None:
    source = sound(tmp_path)
    assert blockaudit.inspect(str(source)) == blockaudit.inspect(source)


@pytest.mark.parametrize(
    "options",
    [{"level": "values"}, {"manifest": "llama"}, {"select": ["N"]}, {"ignore": ["C103"]}, {"strict": True}],
    ids=str,
)
def test_options(options: dict[str, object], tmp_path: Path) -> None:
    report = blockaudit.inspect(broken(tmp_path), **options)  # type: ignore[arg-type]
    assert report.verdict == "rejected"
    assert "final-norm-missing" in [f.name for f in report.findings]
    assert ("config-field-unconsumed" in [f.name for f in report.findings]) is not (
        {"select", "ignore"} & options.keys() != set()
    )


def test_options_are_named() -> None:
    """Only the source goes by position: an option may be put between two others later."""
    source, *options = introspection.signature(blockaudit.inspect).parameters.values()
    assert source.name == "source"
    assert {p.kind for p in options} == {introspection.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("source", ["nothing", "config.json", "empty"])
def test_nothing_to_audit_raises_one_line(source: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError) as raised:
        blockaudit.inspect(tmp_path / source)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("option", "value"), [("level", "deep"), ("manifest", "gpt9"), ("select", ["Z9"])])
def test_a_wrong_option_raises(option: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(RequestError):
        blockaudit.inspect(sound(tmp_path), **{option: value})  # type: ignore[arg-type]


def test_a_report_does_not_change(tmp_path: Path) -> None:
    report = blockaudit.inspect(sound(tmp_path))
    with pytest.raises((FrozenInstanceError, AttributeError)):
        report.verdict = "rejected"  # type: ignore[misc]


def test_unverified_is_a_status_of_its_own(tmp_path: Path) -> None:
    report = blockaudit.inspect(family("llama", no_config)(tmp_path))
    assert (report.verdict, report.exit_status) == ("unverified", 3)


def test_progress_is_told_of_every_byte(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    report = blockaudit.inspect(sound(tmp_path), level="values", progress=lambda *step: told.append(step))
    assert told[-1] == ("values", report.subject.bytes, report.subject.bytes)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_a_script_needs_no_torch(tmp_path: Path) -> None:
    """The import and a whole audit, in a process that cannot import torch, transformers or safetensors."""
    source = broken(tmp_path)
    code = (
        "import sys; sys.modules.update(torch=None, transformers=None, safetensors=None)\n"
        "import json, blockaudit\n"
        f"r = blockaudit.inspect({str(source)!r}, level='values')\n"
        "print(json.dumps([r.verdict, [f.name for f in r.findings]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == ["rejected", ["final-norm-missing", "config-field-unconsumed"]]
