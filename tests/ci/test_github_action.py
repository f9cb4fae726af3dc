"""action.yml: what it declares, and what its steps do under the environment of a runner."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockaudit.cli.main import run as blockaudit
from tests.ci.conftest import ROOT
from tests.ci.runner import EXPRESSION, Job, load, run

ACTION = ROOT / "action.yml"
Audit = Callable[..., Job]


def _strings(node: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], str]]:
    if isinstance(node, dict):
        return [found for key, value in node.items() for found in _strings(value, (*path, str(key)))]
    if isinstance(node, list):
        return [found for at, value in enumerate(node) for found in _strings(value, (*path, str(at)))]
    return [(path, str(node))]


def test_expressions_stand_in_the_environment_and_nowhere_else() -> None:
    """A value in a script would be read as shell: `source: $(id)` of a pull request would run."""
    action = load(ACTION)
    for path, text in _strings(action["runs"]):
        for expression in EXPRESSION.findall(text):
            assert path[2] == "env", f"{'.'.join(path)}: {expression}"
            assert expression.startswith("inputs.")


def test_every_input_is_declared_and_used() -> None:
    action = load(ACTION)
    used = {name for _, text in _strings(action["runs"]) for name in EXPRESSION.findall(text)}
    assert used == {f"inputs.{name}" for name in action["inputs"]}
    assert all(one["description"] for one in action["inputs"].values())


def test_an_action_asks_for_nothing_beside_itself() -> None:
    steps = load(ACTION)["runs"]["steps"]
    assert load(ACTION)["runs"]["using"] == "composite"
    assert all("uses" not in step and step["shell"] == "bash" for step in steps)


@pytest.fixture
def audit(workspace: Path, installed: Path, tmp_path: Path) -> Audit:
    """Run the action in a job, without its install step."""
    temp = tmp_path / "temp"
    temp.mkdir()
    (temp / "blockaudit").symlink_to(installed)

    def go(source: str, **inputs: str) -> Job:
        given = {"source": source, **{name.replace("_", "-"): value for name, value in inputs.items()}}
        return run(ACTION, given, workspace, temp, skip=("Install blockaudit",))

    return go


def test_an_accepted_checkpoint(audit: Audit) -> None:
    job = audit("models/good")
    assert (job.status, job.outputs["status"], job.outputs["verdict"]) == (0, "0", "accepted")
    assert json.loads(Path(job.outputs["report"]).read_text())["verdict"] == "accepted"
    assert json.loads(Path(job.outputs["sarif"]).read_text())["version"] == "2.1.0"
    assert sorted(p.name for p in Path(job.outputs["report-directory"]).iterdir()) == [
        f"blockaudit.{suffix}" for suffix in ("json", "md", "sarif", "xml")
    ]
    assert "accepted at `headers` level" in job.summary
    assert "::error" not in job.log


def test_a_source_with_wildcards_is_all_that_it_matches(audit: Audit) -> None:
    job = audit("models/*/")
    sources = [line.partition("level")[2].strip() for line in job.log.splitlines() if line.startswith("blockaudit: ")]
    assert sources == ["models/cut short/", "models/good/", "models/open/"]
    assert (job.status, job.outputs["verdict"]) == (1, "rejected")


def test_wildcards_that_match_nothing_are_no_audit(audit: Audit) -> None:
    job = audit("models/none*/")
    assert (job.status, job.outputs["status"], job.outputs["verdict"]) == (2, "2", "")
    assert "source 'models/none*/' matches nothing" in job.log


def test_a_rejected_checkpoint(audit: Audit) -> None:
    job = audit("models/cut short")
    assert (job.status, job.outputs["status"], job.outputs["verdict"]) == (1, "1", "rejected")
    assert "::error file=models/cut short/model.safetensors,title=F102 truncated-file::" in job.log
    assert "truncated-file" in job.summary


def test_an_unverified_checkpoint(audit: Audit) -> None:
    job = audit("models/open")
    assert (job.status, job.outputs["status"], job.outputs["verdict"]) == (3, "3", "unverified")
    allowed = audit("models/open", allow_unverified="true")
    assert (allowed.status, allowed.outputs["verdict"]) == (0, "unverified")


def test_what_cannot_be_served(audit: Audit) -> None:
    before = audit("models/good")
    job = audit("models/<b>absent")
    assert (job.status, job.outputs["status"], job.outputs["verdict"]) == (2, "2", "")
    assert (job.outputs["report"], job.outputs["sarif"]) == ("", "")
    assert not Path(before.outputs["report"]).exists(), "the report of an earlier step passes for this one's"
    assert "::error title=blockaudit::" in job.log
    assert "could not be served" in job.summary
    assert "<b>" not in job.summary


def test_several_sources(audit: Audit) -> None:
    job = audit("models/good\n\n  models/open\nmodels/cut short\n")
    assert (job.status, job.outputs["verdict"]) == (1, "rejected")
    lines = Path(job.outputs["report"]).read_text().splitlines()
    assert [json.loads(line)["verdict"] for line in lines] == ["accepted", "unverified", "rejected"]


def test_inputs_become_options(audit: Audit, workspace: Path, tmp_path: Path) -> None:
    (workspace / "own.toml").write_text('ignore = ["F"]\n')
    assert audit("models/cut short", ignore="F102,K").status == 0
    assert audit("models/cut short", select="N").status == 0
    assert audit("models/cut short", config="own.toml").status == 0
    # config-missing is a warning.
    assert audit("models/open", strict="true").status == 1
    assert audit("models/good", manifest="gpt2").status == 1
    job = audit("models/good", level="values", report_directory=str(tmp_path / "kept"))
    assert json.loads((tmp_path / "kept" / "blockaudit.json").read_text())["level"] == "values"
    assert job.outputs["report-directory"] == str(tmp_path / "kept")


def test_a_baseline(audit: Audit, workspace: Path, tmp_path: Path) -> None:
    config, known = workspace / "models/good/config.json", tmp_path / "known.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 4', '"num_hidden_layers": 5'))
    assert audit("models/good").status == 1
    assert blockaudit(["inspect", str(workspace / "models/good"), "--write-baseline", str(known), "--quiet"]) == 0
    assert audit("models/good", baseline=str(known)).status == 0


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"source": " \n "}, "source is empty"),
        ({"source": "models/good", "strict": "yes"}, "strict is 'yes'"),
        ({"source": "models/good", "report_directory": "a\nstatus=0"}, "report-directory is one path"),
        ({"source": "models/good", "report_directory": "models/good/config.json"}, "cannot be made"),
    ],
)
def test_inputs_that_cannot_be_used(audit: Audit, inputs: dict[str, str], said: str) -> None:
    job = audit(**inputs)
    assert (job.status, job.outputs["status"], job.outputs["verdict"]) == (2, "2", "")
    assert job.log.startswith("::error title=blockaudit::")
    assert said in job.log
    assert len(job.log.splitlines()) == 1


@pytest.mark.parametrize("value", ["$(touch ran)", "`touch ran`", "'; touch ran; '", '"; touch ran; "', "--help"])
def test_no_input_is_read_as_shell_or_as_an_option(audit: Audit, workspace: Path, value: str) -> None:
    job = audit(value, manifest=value, level=value)
    assert job.status == 2
    assert audit(value).status == 2
    assert not (workspace / "ran").exists()


@pytest.mark.parametrize(
    ("level", "extra"), [("", ""), ("values", ""), ("graph", "[torch]"), ("values,graph", "[torch]")]
)
def test_torch_is_installed_where_the_level_needs_it(workspace: Path, tmp_path: Path, level: str, extra: str) -> None:
    python, asked = tmp_path / "python", tmp_path / "asked"
    python.write_text(
        f"""#!/bin/sh
        if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; else printf '%s\\n' "$@" > "{asked}"; fi
        """
    )
    python.chmod(0o755)
    job = run(ACTION, {"source": "x", "level": level, "python": str(python)}, workspace, tmp_path, skip=("Audit",))
    assert job.status == 0, job.log
    words = asked.read_text().splitlines()
    assert words[-1] == f"{ROOT}{extra}"
    assert words[words.index("--constraint") + 1] == str(ROOT / "constraints.txt")


@pytest.mark.index
def test_the_install_step_installs_the_action_s_own_checkout(workspace: Path, tmp_path: Path) -> None:
    """The whole action, from a folder with a space in its name."""
    checkout, temp = tmp_path / "actions here", tmp_path / "temp"
    temp.mkdir()
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "build", "dist")
    for name in ("blockaudit", "manifests", "maps", "schemas", "ci"):
        shutil.copytree(ROOT / name, checkout / name, ignore=ignored)
    for name in ("action.yml", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    job = run(checkout / "action.yml", {"source": "models/good"}, workspace, temp)
    assert (job.status, job.outputs["verdict"]) == (0, "accepted"), job.log
    assert not (temp / "blockaudit" / "bin" / "torch").exists()
