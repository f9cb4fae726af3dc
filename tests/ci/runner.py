"""As much of a GitHub runner as a composite action of shell steps needs. What it does not know is an error."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


@dataclass
class Job:
    """What a job sees of one action that it has run."""

    status: int = 0
    log: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""


def load(action: Path) -> dict[str, Any]:
    return yaml.safe_load(action.read_text(encoding="utf-8"))


def expanded(text: str, values: dict[str, str]) -> str:
    """A text with its expressions replaced."""
    return EXPRESSION.sub(lambda found: values[found[1]], text)


def run(action: Path, given: dict[str, str], workspace: Path, temp: Path, skip: tuple[str, ...] = ()) -> Job:
    """Run the steps of an action as `uses:` would, those named in `skip` left out."""
    described, job = load(action), Job()
    unknown = set(given) - set(described["inputs"])
    assert not unknown, f"no inputs of the action: {unknown}"
    values = {f"inputs.{name}": given.get(name, one.get("default", "")) for name, one in described["inputs"].items()}
    runner = {
        "GITHUB_ACTION_PATH": str(action.parent),
        "GITHUB_WORKSPACE": str(workspace),
        "GITHUB_STEP_SUMMARY": str(temp / "summary.md"),
        "RUNNER_TEMP": str(temp),
    }
    (temp / "summary.md").touch()
    for step in described["runs"]["steps"]:
        if step["name"] not in skip and job.status == 0:
            _step(step, values, runner, workspace, temp, job)
    job.summary = (temp / "summary.md").read_text(encoding="utf-8")
    for name, one in described["outputs"].items():
        job.outputs[name] = EXPRESSION.sub(lambda found: values.get(found[1], ""), one["value"])
    return job


def _step(
    step: dict[str, Any], values: dict[str, str], runner: dict[str, str], workspace: Path, temp: Path, job: Job
) -> None:
    assert step["shell"] == "bash"
    outputs = temp / "outputs.txt"
    outputs.write_text("")
    given = {name: expanded(str(value), values) for name, value in step.get("env", {}).items()}
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    kept |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    done = subprocess.run(
        # The command line of a runner for `shell: bash`.
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", expanded(step["run"], values)],
        cwd=workspace,
        env=kept | runner | {"GITHUB_OUTPUT": str(outputs)} | given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    job.status, job.log = done.returncode, job.log + done.stdout
    for line in outputs.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition("=")
        values[f"steps.{step.get('id')}.outputs.{name}"] = value
