""".pre-commit-hooks.yaml: which files it takes, what it says of them, and that pre-commit itself runs it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ci.conftest import ROOT

HOOKS = ROOT / ".pre-commit-hooks.yaml"
HOOK: dict[str, Any] = yaml.safe_load(HOOKS.read_text(encoding="utf-8"))[0]


def test_pre_commit_reads_it() -> None:
    pytest.importorskip("pre_commit")
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "validate-manifest", str(HOOKS)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("model.safetensors", True),
        ("models/a/model-00001-of-00002.safetensors", True),
        ("models/a/model.safetensors.index.json", True),
        ("models/a/config.json", True),
        ("pytorch_model.bin", True),
        ("tsconfig.json", False),
        ("models/a/tokenizer_config.json", False),
        ("models/a/tokenizer.json", False),
        ("README.md", False),
    ],
)
def test_files_that_it_takes(name: str, taken: bool) -> None:
    assert bool(re.search(HOOK["files"], name)) is taken


def _entry(workspace: Path, *files: str) -> subprocess.CompletedProcess[str]:
    """The entry as pre-commit runs it, once for all files."""
    assert HOOK["require_serial"], "several processes would audit one folder several times"
    program, *words = shlex.split(HOOK["entry"])
    command = [sys.executable, "-P", "-m", program, *words, *files]
    return subprocess.run(
        command, cwd=workspace, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_folder_is_audited_once(workspace: Path) -> None:
    done = _entry(workspace, "models/good/config.json", "models/good/model.safetensors", "./models/good/config.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("ACCEPTED at headers level  models/good ") == 1


def test_every_folder_that_changed_counts(workspace: Path) -> None:
    done = _entry(workspace, "models/good/config.json", "models/cut short/model.safetensors")
    assert done.returncode == 1
    assert "models/good" in done.stdout
    assert "truncated-file" in done.stdout


def test_a_config_of_something_else_is_passed_over(workspace: Path) -> None:
    (workspace / "app").mkdir()
    (workspace / "app/config.json").write_text("{}")
    done = _entry(workspace, "app/config.json")
    assert (done.returncode, done.stdout) == (0, "")
    assert "app/config.json: no weights in its folder" in done.stderr
    assert _entry(workspace, "app/config.json", "models/open/model.safetensors").returncode == 3


def test_a_file_that_is_gone_still_names_its_folder(workspace: Path) -> None:
    """`git diff --name-only` lists deleted files as well: a checkpoint that lost its config.json is to be audited."""
    assert _entry(workspace, "models/open/config.json").returncode == 3


def test_a_name_that_is_wrong_does_not_pass(workspace: Path) -> None:
    done = _entry(workspace, "no/such/config.json")
    assert done.returncode == 2
    assert "no such file or folder" in done.stderr


def test_folders_and_addresses_stay_what_they_are(workspace: Path) -> None:
    assert _entry(workspace, "models/good").returncode == 0
    assert _entry(workspace, "models").returncode == 2


@pytest.mark.index
def test_pre_commit_runs_it(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of a broken checkpoint is stopped, by a hook that pre-commit has installed from a repository."""
    pytest.importorskip("pre_commit")
    monkeypatch.setenv("PRE_COMMIT_HOME", str(tmp_path / "home"))
    ours = tmp_path / "blockaudit"
    for name in ("blockaudit", "manifests", "maps", "schemas"):
        shutil.copytree(ROOT / name, ours / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml"):
        shutil.copy(ROOT / name, ours)
    revision = _committed(ours)
    (workspace / ".pre-commit-config.yaml").write_text(
        f"repos:\n- {{repo: {ours}, rev: {revision}, hooks: [{{id: blockaudit, args: [--strict]}}]}}\n"
    )
    shutil.rmtree(workspace / "models/open")
    _committed(workspace)
    command = [sys.executable, "-P", "-m", "pre_commit", "run", "--all-files"]
    done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 1
    assert "exit code: 1" in done.stdout, done.stdout
    assert "truncated-file" in done.stdout
    shutil.rmtree(workspace / "models/cut short")
    _committed(workspace)
    done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout


def _committed(folder: Path) -> str:
    """Everything in a folder, committed to a repository of its own; the commit."""
    names = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "--all"], [*names, "commit", "-q", "-m", "state"]):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()
