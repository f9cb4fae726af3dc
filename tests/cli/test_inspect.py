from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockaudit.report import json_report, text
from tests.cli.conftest import Outcome
from tests.report import samples

Run = Callable[..., Outcome]
Asked = list[dict[str, Any]]


@pytest.mark.parametrize(
    ("sources", "status"),
    [
        ("good", 0),
        ("bad", 1),
        ("nothing", 2),
        ("open", 3),
        ("good good", 0),
        ("good open", 3),
        ("bad open good", 1),
        ("open nothing bad good", 2),
    ],
)
def test_the_worst_status_counts(blockaudit: Run, audits: Asked, sources: str, status: int) -> None:
    assert blockaudit("inspect", *sources.split()).status == status
    assert [a["source"] for a in audits] == sources.split()


def test_options_reach_the_pipeline(blockaudit: Run, audits: Asked) -> None:
    blockaudit(
        "inspect", "good", "--manifest", "llama", "--level", "values", "--select", "N,K1", "--select", "S",
        "--ignore", "N201,", "--strict", "--allow-unverified",
    )  # fmt: skip
    assert audits == [
        {
            "source": "good",
            "part": None,
            "base": None,
            "manifest": "llama",
            "level": "values",
            "candidate": None,
            "trust_remote_code": False,
            "select": ("N", "K1", "S"),
            "ignore": ("N201",),
            "strict": True,
            "allow_unverified": True,
            "waivers": (),
            "baseline": None,
            "write_baseline": None,
            "pictures": False,
            "progress": None,
        }
    ]


def test_defaults(blockaudit: Run, audits: Asked) -> None:
    blockaudit("inspect", "good")
    (asked,) = audits
    assert (asked["level"], asked["manifest"], asked["select"], asked["ignore"]) == ("headers", None, (), ())
    assert (asked["strict"], asked["allow_unverified"]) == (False, False)


@pytest.mark.parametrize("asked", ["headers", "headers,values", "graph", "values,graph"])
def test_the_level_is_handed_on(blockaudit: Run, audits: Asked, asked: str) -> None:
    blockaudit("inspect", "good", "--level", asked)
    assert audits[0]["level"] == asked


def test_an_unknown_level_is_refused(blockaudit: Run, tmp_path: Path) -> None:
    outcome = blockaudit("inspect", tmp_path, "--level", "deep")
    assert outcome.status == 2
    assert outcome.err == (
        "blockaudit: error: unknown level 'deep': expected headers, values, graph, or several with commas\n"
    )


def test_text_is_the_default(blockaudit: Run, audits: Asked) -> None:
    outcome = blockaudit("inspect", "bad")
    assert outcome.err == ""
    assert outcome.out.startswith("REJECTED at headers level  bad")
    assert "\x1b" not in outcome.out


def test_quiet_keeps_verdict_and_findings(blockaudit: Run, audits: Asked) -> None:
    out = blockaudit("inspect", "bad", "--quiet").out
    assert "error N201" in out
    assert "Contract" not in out


def test_json_of_one_source_is_one_document(blockaudit: Run, audits: Asked) -> None:
    out = blockaudit("inspect", "bad", "--format", "json").out
    assert json.loads(out)["verdict"] == "rejected"
    assert out.count("\n") > 10


def test_json_of_several_sources_is_one_line_each(blockaudit: Run, audits: Asked) -> None:
    outcome = blockaudit("inspect", "good", "nothing", "bad", "--format", "json")
    assert [json.loads(line)["subject"]["source"] for line in outcome.out.splitlines()] == ["good", "bad"]
    assert outcome.err == "blockaudit: error: no such file or folder: 'nothing'\n"
    assert outcome.status == 2


def test_allow_unverified(blockaudit: Run, audits: Asked) -> None:
    assert blockaudit("inspect", "open", "--allow-unverified").status == 0
    assert blockaudit("inspect", "open", "bad", "--allow-unverified").status == 1
    assert blockaudit("inspect", "open", "nothing", "--allow-unverified").status == 2


def test_an_unknown_format_is_refused_before_any_work(blockaudit: Run, audits: Asked) -> None:
    outcome = blockaudit("inspect", "good", "--format", "yaml")
    assert outcome.status == 2
    assert outcome.err.startswith("blockaudit: error: unknown format 'yaml': this release writes ")
    assert audits == []


def test_reports_are_written_by_suffix(blockaudit: Run, audits: Asked, tmp_path: Path) -> None:
    as_json, as_text = tmp_path / "r.json", tmp_path / "r.txt"
    assert blockaudit("inspect", "bad", "--report", as_json, "--report", as_text).status == 1
    assert json.loads(as_json.read_text())["subject"]["source"] == "bad"
    assert as_json.read_text() == blockaudit("inspect", "bad", "--format", "json").out
    assert as_text.read_text() == blockaudit("inspect", "bad").out


def test_a_report_of_several_has_them_all(blockaudit: Run, audits: Asked, tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    blockaudit("inspect", "bad", "nothing", "good", "--report", path)
    assert [json.loads(line)["verdict"] for line in path.read_text().splitlines()] == ["rejected", "accepted"]


def test_nothing_audited_is_nothing_written(blockaudit: Run, audits: Asked, tmp_path: Path) -> None:
    assert blockaudit("inspect", "nothing", "--report", tmp_path / "r.json").status == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["r.docx", "r"])
def test_an_unknown_suffix_is_refused_before_any_work(
    blockaudit: Run, audits: Asked, tmp_path: Path, name: str
) -> None:
    outcome = blockaudit("inspect", "good", "--report", tmp_path / name)
    assert outcome.status == 2
    assert "by its suffix: this release writes" in outcome.err
    assert audits == []


@pytest.mark.parametrize("inside", ["r.json", "deep/r.json", "../good/r.json", "link/r.json"])
def test_no_report_under_source(blockaudit: Run, audits: Asked, tmp_path: Path, inside: str) -> None:
    source = tmp_path / "good"
    (source / "deep").mkdir(parents=True)
    (source / "link").symlink_to(source / "deep", target_is_directory=True)
    outcome = blockaudit("inspect", "bad", source, "--report", source / inside)
    assert outcome.status == 2
    assert "where nothing is ever written" in outcome.err
    assert audits == []
    assert not list(source.rglob("*.json"))


def test_no_report_under_source_by_way_of_a_link(blockaudit: Run, audits: Asked, tmp_path: Path) -> None:
    source, way = tmp_path / "good", tmp_path / "way"
    source.mkdir()
    way.symlink_to(source, target_is_directory=True)
    assert blockaudit("inspect", source, "--report", way / "r.json").status == 2
    assert blockaudit("inspect", way, "--report", source / "r.json").status == 2
    assert list(source.iterdir()) == []


def test_no_report_over_a_single_file_or_its_neighbours(blockaudit: Run, audits: Asked, tmp_path: Path) -> None:
    source, config = tmp_path / "good", tmp_path / "config.json"
    source.write_bytes(b"weights")
    config.write_text("{}")
    assert blockaudit("inspect", source, "--report", config).status == 2
    assert config.read_text() == "{}"
    index = tmp_path / "model.safetensors.index.json"
    index.write_text("{}")
    assert blockaudit("inspect", index, "--report", index).status == 2
    assert index.read_text() == "{}"


def test_a_report_beside_a_single_file_may_be_written_again(blockaudit: Run, audits: Asked, tmp_path: Path) -> None:
    source, report = tmp_path / "good", tmp_path / "r.json"
    source.write_bytes(b"weights")
    for _ in range(2):
        assert blockaudit("inspect", source, "--report", report).status == 0
    assert json.loads(report.read_text())["verdict"] == "accepted"


def test_a_report_that_cannot_be_written_is_status_2(blockaudit: Run, audits: Asked, tmp_path: Path) -> None:
    outcome = blockaudit("inspect", "good", "--report", tmp_path / "no" / "r.json")
    assert outcome.status == 2
    assert "cannot write --report" in outcome.err
    assert "No such file or directory" in outcome.err


class _Terminal:
    """Standard output as a terminal would have it."""

    def __init__(self) -> None:
        self.written = ""

    def write(self, words: str) -> None:
        self.written += words

    def flush(self) -> None: ...

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "argv", "coloured"),
    [
        ({}, [], True),
        ({"NO_COLOR": "1"}, [], False),
        ({"NO_COLOR": ""}, [], True),
        ({"TERM": "dumb"}, [], False),
        ({}, ["--no-color"], False),
    ],
)
def test_colour_is_for_terminals_that_want_it(
    blockaudit: Run,
    audits: Asked,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    argv: list[str],
    coloured: bool,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    terminal = _Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    blockaudit("inspect", "bad", *argv)
    assert ("\x1b[1;31mREJECTED" in terminal.written) is coloured


def test_samples_are_what_the_formats_say(blockaudit: Run, audits: Asked) -> None:
    good = blockaudit("inspect", "good", "--format", "json").out
    assert json_report.from_dict(json.loads(good)).contract[0].field == samples.ACCEPTED.contract[0].field
    assert blockaudit("inspect", "good").out.splitlines()[1:] == text.render(samples.ACCEPTED).splitlines()[1:]
