"""Files for a CI that the documents show: they name inputs, variables and hooks that are there."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from blockaudit.report import markdown
from tests.ci.conftest import ROOT
from tests.ci.runner import EXPRESSION
from tests.report import samples

ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
GITLAB = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text(encoding="utf-8"))
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/ci.md")}


def _shown(name: str) -> list[Any]:
    return [yaml.safe_load(b) for b in re.findall(r"^```yaml\n(.*?)^```$", TEXTS[name], re.MULTILINE | re.DOTALL)]


def _steps() -> Iterator[Any]:
    for name in TEXTS:
        for shown in _shown(name):
            for job in shown.get("jobs", {}).values():
                yield from job["steps"]


def test_workflows_use_inputs_and_outputs_that_the_action_has() -> None:
    steps = list(_steps())
    ours = [step for step in steps if "/blockaudit@" in step.get("uses", "")]
    assert len(ours) == len(TEXTS), "every document shows the action"
    for step in ours:
        assert set(step["with"]) <= set(ACTION["inputs"])
        needed = {name for name, one in ACTION["inputs"].items() if one.get("required")}
        assert needed <= set(step["with"])
    for read in EXPRESSION.findall(yaml.safe_dump(steps)):
        if read.startswith("github."):
            continue
        assert read.removeprefix("steps.audit.outputs.") in ACTION["outputs"]


@pytest.mark.parametrize(("part", "head"), [("inputs", "input"), ("outputs", "output")])
def test_the_page_lists_what_the_action_has(part: str, head: str) -> None:
    assert _listed(head) == set(ACTION[part])


def test_the_page_lists_the_variables_of_the_template() -> None:
    assert _listed("variable") == set(GITLAB[".blockaudit"]["variables"])


GH = """#!/bin/sh
printf '%s|' "$@" >> "$CALLS"; echo >> "$CALLS"
case "$*" in *--paginate*) printf '%s' "$EARLIER" ;; esac
"""


@pytest.mark.parametrize(
    ("earlier", "last"),
    [
        ("", "pr|comment|7|--body-file|r.md|"),
        ("11\n12\n", "api|--silent|--method|PATCH|repos/o/r/issues/comments/11|-F|body=@r.md|"),
    ],
)
def test_the_comment_is_written_once_and_then_edited(tmp_path: Path, earlier: str, last: str) -> None:
    (step,) = [step for step in _steps() if step.get("name") == "Comment on the pull request"]
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    given = {"CALLS": str(tmp_path / "calls"), "EARLIER": earlier, "GH_REPO": "o/r", "NUMBER": "7", "REPORT": "r.md"}
    assert given.keys() - {"CALLS", "EARLIER"} <= step["env"].keys()
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **given}
    subprocess.run(["bash", "-e", "-c", step["run"]], env=environment, check=True, timeout=60)
    first, call = (tmp_path / "calls").read_text().splitlines()
    assert first.startswith("api|--paginate|repos/o/r/issues/7/comments|--jq|")
    assert markdown.render(samples.ACCEPTED).startswith("<!-- blockaudit -->")
    assert "<!-- blockaudit -->" in first
    assert call == last


def _listed(head: str) -> set[str]:
    """Names in the first column of the table with this head."""
    table = TEXTS["docs/ci.md"].partition(f"| {head} | meaning |\n|---|---|\n")[2].partition("\n\n")[0]
    return {name for row in table.splitlines() for name in re.findall(r"`([\w-]+)`", row.split("|")[1])}


def test_the_gitlab_job_sets_variables_that_the_template_has() -> None:
    (job,) = [
        one for shown in _shown("docs/ci.md") for one in shown.values() if isinstance(one, dict) and "extends" in one
    ]
    assert set(job["variables"]) <= set(GITLAB[job["extends"]]["variables"])


def test_the_hook_that_is_shown_is_there() -> None:
    (repository,) = [one for shown in _shown("docs/ci.md") for one in shown.get("repos", [])]
    assert {hook["id"] for hook in repository["hooks"]} <= {hook["id"] for hook in HOOKS}
