"""The audit step of action.yml: inputs from the environment, one run of `blockaudit inspect`, outputs and a summary.

Standard library only: it runs in the environment that the action has made, and beside whatever the job has.
Its exit status is that of `blockaudit inspect`.
"""

from __future__ import annotations

import glob
import html
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

UNSERVED = 2
SUFFIXES = ("json", "sarif", "md", "xml")
# An input and the option that it becomes; an empty one is left to the config file.
VALUES = ("manifest", "level", "select", "ignore", "baseline", "config")
FLAGS = ("strict", "allow-unverified")
WORST_FIRST = ("rejected", "unverified", "accepted")


class InputError(Exception):
    """An input that cannot be used; the message is one line."""


def main() -> int:
    """Run the audit that the inputs ask for."""
    try:
        folder = report_folder(os.environ)
        options, sources = arguments(os.environ)
    except InputError as error:
        complain(str(error))
        output({"status": str(UNSERVED), "verdict": "", "report": "", "sarif": "", "report-directory": ""})
        return UNSERVED
    reports = {suffix: folder / f"blockaudit.{suffix}" for suffix in SUFFIXES}
    for report in reports.values():
        report.unlink(missing_ok=True)  # of an earlier step
    written = [word for report in reports.values() for word in ("--report", str(report))]
    command = [sys.executable, "-m", "blockaudit", "inspect", *options, *written, "--format", "github", "--", *sources]
    # Isolated: nothing of the repository under audit is imported in our stead.
    command.insert(1, "-I")
    done = subprocess.run(command, stderr=subprocess.PIPE, encoding="utf-8", errors="backslashreplace", check=False)
    sys.stderr.write(done.stderr)
    complaints = [line for line in done.stderr.splitlines() if line.startswith("blockaudit: error: ")]
    for line in complaints:
        complain(line.removeprefix("blockaudit: error: "))
    summarise(reports["md"], complaints)
    output(
        {
            "status": str(done.returncode),
            "verdict": "" if done.returncode == UNSERVED else verdict(reports["json"]),
            "report": written_path(reports["json"]),
            "sarif": written_path(reports["sarif"]),
            "report-directory": str(folder),
        }
    )
    return done.returncode


def report_folder(environment: Mapping[str, str]) -> Path:
    """Where the reports go, made where it is not there."""
    given = environment["INPUT_REPORT_DIRECTORY"]
    if len(given.splitlines()) > 1:
        raise InputError("report-directory is one path, not several lines")
    folder = Path(given or Path(environment["RUNNER_TEMP"]) / "blockaudit-report")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"report-directory {given!r} cannot be made: {error.strerror}") from error
    return folder


def arguments(environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Options and SOURCEs of the command line."""
    sources = [line.strip() for line in environment["INPUT_SOURCE"].splitlines() if line.strip()]
    if not sources:
        raise InputError("source is empty: name what is to be audited, one SOURCE a line")
    return list(options(environment)), [one for source in sources for one in matched(source)]


def matched(source: str) -> list[str]:
    """What a SOURCE with wildcards stands for, sorted (`models/*/`); any other stands for itself."""
    if "://" in source or os.path.lexists(source) or not glob.has_magic(source):
        return [source]
    found = sorted(glob.glob(source))
    if not found:
        raise InputError(f"source {source!r} matches nothing")
    return found


def options(environment: Mapping[str, str]) -> Iterator[str]:
    """Each input that is given, as the option of its name."""
    for name in VALUES:
        if value := environment[variable(name)]:
            yield f"--{name}={value}"
    for name in FLAGS:
        value = environment[variable(name)]
        if value not in ("", "true", "false"):
            raise InputError(f"{name} is {value!r}: expected true or false")
        if value == "true":
            yield f"--{name}"


def variable(name: str) -> str:
    """The environment variable of an input."""
    return "INPUT_" + name.upper().replace("-", "_")


def verdict(report: Path) -> str:
    """The worst verdict of one report, or of several, one a line."""
    if not report.exists():
        return ""
    text = report.read_text(encoding="utf-8")
    try:
        reports = [json.loads(text)]
    except json.JSONDecodeError:
        reports = [json.loads(line) for line in text.splitlines()]
    found = {one["verdict"] for one in reports}
    return next(name for name in WORST_FIRST if name in found)


def written_path(report: Path) -> str:
    """The path of a report, or nothing where it was not written."""
    return str(report) if report.exists() else ""


def complain(message: str) -> None:
    """An annotation of the job."""
    escaped = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    print(f"::error title=blockaudit::{escaped}", flush=True)


def summarise(report: Path, complaints: list[str]) -> None:
    """Append the markdown report, and whatever could not be served, to the summary of the job."""
    with open(os.environ["GITHUB_STEP_SUMMARY"], "a", encoding="utf-8") as summary:
        if report.exists():
            summary.write(report.read_text(encoding="utf-8"))
        if complaints:
            said = html.escape("\n".join(complaints))
            summary.write(f"\n## blockaudit: the request could not be served\n\n<pre>{said}</pre>\n")


def output(values: dict[str, str]) -> None:
    """Set the outputs of the step; every value is one line."""
    with open(os.environ["GITHUB_OUTPUT"], "a", encoding="utf-8") as outputs:
        outputs.writelines(f"{name}={value}\n" for name, value in values.items())


if __name__ == "__main__":
    sys.exit(main())
