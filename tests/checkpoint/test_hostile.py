from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from blockaudit.checkpoint.adapter.settings import read_settings
from blockaudit.cli.main import run
from tests.checkpoint.hostile import CASES, SECRET, WEIGHTS, Hostile
from tests.support.audit import inspect
from tests.support.checkpoint import draft, encoded, family, write
from tests.support.watch import watch


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_said_of_it(case: Hostile, tmp_path: Path) -> None:
    source = case.build(tmp_path / "case")
    outcome = inspect(source)
    assert outcome.status == case.status, outcome.out
    assert not case.rule or case.rule in outcome.names, outcome.findings
    assert SECRET["model_type"] not in outcome.out
    assert not (tmp_path / "case" / "canary").exists()


def test_no_other_file_is_opened_and_nothing_is_done(tmp_path: Path) -> None:
    """All of them in one process, which writes down every file that is opened and everything that is changed."""
    away = tmp_path / "away"
    (away / ".git").mkdir(parents=True)  # where the search for a config file ends
    sources = [case.build(tmp_path / str(number)) for number, case in enumerate(CASES)]
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    told = watch([["inspect", str(source), "--level", "headers"] for source in sources], away)
    for case, source, seen in zip(CASES, sources, told, strict=True):
        assert seen.status == case.status, case.name
        assert seen.outside(source) == [], case.name
        assert seen.deeds == (), case.name
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_the_watch_sees_a_file_outside_and_a_deed(tmp_path: Path) -> None:
    source = family("llama")(tmp_path / "checkpoint")
    (tmp_path / "pyproject.toml").write_text("[tool.blockaudit]\n")
    (seen,) = watch([["inspect", str(source), "--report", str(tmp_path / "r.md")]], tmp_path)
    assert seen.status == 0
    assert seen.outside(source) == [os.path.realpath(tmp_path / "pyproject.toml")] * 2
    assert seen.deeds == (("write", os.path.realpath(tmp_path / "r.md")),)


def test_a_named_file_may_be_a_link(tmp_path: Path) -> None:
    """What the user names is what the user wants; what lies beside it is not."""
    real = family("llama")(tmp_path / "real")
    (tmp_path / "named").mkdir()
    link = tmp_path / "named" / WEIGHTS
    link.symlink_to(real / WEIGHTS)
    assert inspect(link).names == ["config-missing"]
    (tmp_path / "named" / "config.json").symlink_to(real / "config.json")
    assert "config-invalid" in inspect(link).names


def test_a_folder_that_is_a_link(tmp_path: Path) -> None:
    family("llama")(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    assert inspect(tmp_path / "link").status == 0


@pytest.mark.parametrize("where", ["snapshots/abc", "snapshots/abc/text_encoder"])
def test_the_cache_of_hugging_face(tmp_path: Path, where: str) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / where
    family("llama")(blobs)
    snapshot.mkdir(parents=True)
    for name in os.listdir(blobs):
        (snapshot / name).symlink_to(os.path.relpath(blobs / name, snapshot))
    assert inspect(snapshot).status == 0
    # Another repository's blobs are another repository's.
    (tmp_path / "other" / "blobs").mkdir(parents=True)
    (snapshot / "config.json").unlink()
    (blobs / "config.json").rename(tmp_path / "other" / "blobs" / "config.json")
    (snapshot / "config.json").symlink_to(tmp_path / "other" / "blobs" / "config.json")
    assert "config-invalid" in inspect(snapshot).names


def test_a_hundred_thousand_files(tmp_path: Path) -> None:
    source = family("llama")(tmp_path / "checkpoint")
    for number in range(100_000):
        os.close(os.open(source / f"x{number}-of-9.safetensors", os.O_CREAT))
    began = time.process_time()
    assert inspect(source).status == 0
    (source / WEIGHTS).unlink()
    outcome = inspect(source)
    assert (outcome.status, len(outcome.err) < 500) == (2, True)
    assert "and 99996 more" in outcome.err
    assert time.process_time() - began < 60


def test_a_name_that_no_file_system_takes(tmp_path: Path) -> None:
    outcome = inspect(tmp_path / ("x" * 300))
    assert outcome.status == 2
    assert outcome.err.endswith("cannot be opened: file name too long\n")
    assert outcome.err.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read(tmp_path: Path) -> None:
    source = family("llama")(tmp_path / "checkpoint")
    (source / WEIGHTS).chmod(0)
    outcome = inspect(source)
    assert outcome.names == ["unreadable-file"]
    assert "permission denied" in outcome.findings[0]["message"]


NAMES = (
    "\x1b[2J\x1b]8;;https://evil.example\x07x\x1b]8;;\x07", "left\u202etfel", "<script>alert(1)</script>", "]]>",
    "\n::error file=x::y", "\0", "| a | b |", "`x`", "\u2028\x85\x9b31m", "../../etc/passwd", "%0A%0D",
)  # fmt: skip


@pytest.mark.parametrize("form", ["text", "markdown", "github", "html", "sarif", "junit", "json"])
def test_names_do_nothing_in_any_format(tmp_path: Path, form: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Names of tensors, of a file and of its folder, and values of config.json."""
    source = tmp_path / "folder \x1b[2J<script>\u202e"
    write(draft("llama", lambda d: d.tensors.update(dict.fromkeys(NAMES, encoded([1.0])))), source)
    (source / "config.json").write_text(
        json.dumps({**json.loads((source / "config.json").read_text()), "hidden_act": NAMES})
    )
    (source / WEIGHTS).rename(source / "\x1b[2J<script>\u202e.safetensors")
    assert run(["inspect", str(source), "--format", form]) == 1
    out, err = capfd.readouterr()
    assert err == ""
    assert not [c for c in out if c != "\n" and not c.isprintable()]
    if form in ("html", "junit"):  # markdown has them in code, where they are text
        assert "<script" not in out
    if form == "html":
        assert "<img" not in out
    assert form == "json" or not [line for line in out.splitlines() if line.startswith("::error file=x")]


@pytest.mark.parametrize("number", [10**400, -(10**400), float("inf"), float("nan"), 0, True])
def test_numbers_of_an_adapter_that_nobody_can_compute_with(number: float) -> None:
    said = read_settings(
        {"peft_type": "LORA", "r": number, "lora_alpha": number, "rank_pattern": {"x": number}, "num_virtual_tokens": 1}
    )
    assert [fault.observed for fault in said.faults if fault.rule == "config-invalid"]
    assert (said.rank, said.alpha, said.ranks) == (None, None, {})
    assert said.scale() == "an unknown factor"
