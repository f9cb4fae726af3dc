"""ci/gitlab.yml: its scripts, run by the shell and with the variables that a GitLab runner would use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from lxml import etree

from tests.ci.conftest import ROOT

JOB: dict[str, Any] = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text(encoding="utf-8"))[".blockaudit"]
Run = Callable[..., subprocess.CompletedProcess[str]]


def _run(part: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A part of the job as a runner does it: its lines in one shell that stops at the first failure."""
    given = JOB["variables"] | {f"BLOCKAUDIT_{name.upper()}": value for name, value in variables.items()}
    script = "\n".join(["set -eo pipefail", *JOB[part]])
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **given}
    environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.fixture
def audit(workspace: Path, installed: Path) -> Run:
    (workspace / ".blockaudit-venv").symlink_to(installed)
    return lambda source, **variables: _run("script", workspace, source=source, **variables)


@pytest.mark.parametrize(("source", "status"), [("good", 0), ("cut short", 1), ("absent", 2), ("open", 3)])
def test_the_status_of_the_job_is_that_of_the_audit(audit: Run, source: str, status: int) -> None:
    assert audit(f"models/{source}").returncode == status


def test_the_reports_that_gitlab_collects(audit: Run, workspace: Path) -> None:
    audit("models/good\nmodels/cut short\n")
    (junit,) = [JOB["artifacts"]["reports"]["junit"]]
    cases = etree.parse(workspace / junit).getroot()
    assert cases.tag == "testsuites"
    assert len(cases.findall("testsuite")) == 2
    (kept,) = JOB["artifacts"]["paths"]
    assert sorted(p.name for p in (workspace / kept).iterdir()) == [
        f"blockaudit.{s}" for s in ("html", "json", "md", "xml")
    ]
    lines = (workspace / kept / "blockaudit.json").read_text().splitlines()
    assert [json.loads(line)["verdict"] for line in lines] == ["accepted", "rejected"]
    assert JOB["artifacts"]["when"] == "always"


def test_variables_become_options(audit: Run) -> None:
    assert audit("models/open", options="--allow-unverified").returncode == 0
    assert audit("models/cut short", options="--ignore F102 --strict").returncode == 0
    assert audit("models/good", manifest="gpt2").returncode == 1


@pytest.mark.parametrize("value", ["$(touch ran)", "`touch ran`", "'; touch ran; '", "*", "--help"])
def test_no_source_is_read_as_shell_a_pattern_or_an_option(audit: Run, workspace: Path, value: str) -> None:
    assert audit(value).returncode == 2
    assert not (workspace / "ran").exists()


@pytest.mark.parametrize(("part", "variable"), [("before_script", "PACKAGE"), ("script", "SOURCE")])
def test_what_is_left_empty_is_named(workspace: Path, part: str, variable: str) -> None:
    done = _run(part, workspace)
    assert done.returncode == 2
    assert f"BLOCKAUDIT_{variable} is empty" in done.stderr


@pytest.mark.parametrize("part", ["before_script", "script"])
def test_a_posix_shell_reads_it(part: str) -> None:
    """Images without bash run it with sh."""
    done = subprocess.run(["sh", "-n"], input="\n".join(JOB[part]), text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.index
def test_the_whole_job(workspace: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    for name in ("blockaudit", "manifests", "maps", "schemas"):
        shutil.copytree(ROOT / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, package)
    made = _run("before_script", workspace, package=str(package))
    assert made.returncode == 0, made.stderr
    assert _run("script", workspace, source="models/good").returncode == 0
