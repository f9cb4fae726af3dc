from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import blockaudit as package
from blockaudit import pipeline
from blockaudit.cli.commands import COMMANDS
from blockaudit.cli.lazy import load
from tests.cli.conftest import Outcome

Run = Callable[..., Outcome]


def test_version(blockaudit: Run) -> None:
    assert blockaudit("--version") == Outcome(0, f"blockaudit {package.__version__}\n", "")


@pytest.mark.parametrize("argv", [["--help"], ["-h"], []])
def test_help_lists_every_command(blockaudit: Run, argv: list[str]) -> None:
    outcome = blockaudit(*argv)
    assert outcome.status == 0
    assert all(f" {name} " in outcome.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_is_there(blockaudit: Run, name: str) -> None:
    assert load(name, COMMANDS[name]).name in {name, None}
    outcome = blockaudit(name, "--help")
    assert outcome.status == 0
    assert f"Usage: blockaudit {name}" in outcome.out


def test_help_shows_brackets_as_they_are(blockaudit: Run) -> None:
    assert "[@revision]" in blockaudit("inspect", "--help").out


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["inspct"], "No such command 'inspct'. Did you mean 'inspect'? (try: blockaudit --help)"),
        (["inspect"], "Missing argument 'SOURCE...' (try: blockaudit inspect --help)"),
        (["inspect", "x", "--no-such"], "No such option: --no-such"),
        (["inspect", "x", "--level"], "Option '--level' requires an argument (try: blockaudit inspect --help)"),
        (["--no-such"], "No such option: --no-such (try: blockaudit --help)"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(blockaudit: Run, argv: list[str], line: str) -> None:
    outcome = blockaudit(*argv)
    assert outcome.status == 2
    assert outcome.out == ""
    assert outcome.err.startswith(f"blockaudit: error: {line}")
    assert outcome.err.count("\n") == 1


def test_an_error_line_stays_one_line(blockaudit: Run) -> None:
    outcome = blockaudit("inspect", "a\nb\x1b[2J\u202e")
    assert outcome.status == 2
    assert outcome.err.count("\n") == 1
    assert "\x1b" not in outcome.err
    assert "\u202e" not in outcome.err


def test_interrupt(blockaudit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "inspect", interrupt)
    assert blockaudit("inspect", "x").status == 130


def test_a_bug_keeps_its_traceback(blockaudit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(pipeline, "inspect", fail)
    with pytest.raises(ZeroDivisionError):
        blockaudit("inspect", "x")


def test_a_bug_in_writing_is_no_broken_pipe(blockaudit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "denied")

    monkeypatch.setattr(pipeline, "inspect", fail)
    with pytest.raises(PermissionError):
        blockaudit("inspect", "x")


PIPED = """
import sys
from pathlib import Path
from blockaudit import pipeline
from blockaudit.cli.main import main
from tests.report import samples
pipeline.inspect = lambda source, **options: samples.REJECTED
main(["inspect", *["x"] * 2000])
"""


def test_a_reader_that_leaves_changes_no_verdict() -> None:
    """`blockaudit inspect ... | head -1`: no complaint, and the status is still the audit's."""
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", PIPED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("REJECTED")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 1


TINY = str(Path(__file__).parents[2] / "fixtures" / "tiny_llama")


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """A line of bash in which `blockaudit` is this checkout."""
    command = f'blockaudit() {{ "{sys.executable}" -m blockaudit "$@"; }}; {line}'
    root = Path(__file__).parents[2]
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=root, timeout=60, check=False)


@pytest.mark.parametrize("argv", [f"inspect {TINY}", "rules", "--version", "manifest list"])
def test_a_report_that_cannot_be_written_is_status_2(argv: str) -> None:
    done = shell(f"blockaudit {argv} > /dev/full")
    assert (done.returncode, done.stderr) == (2, "blockaudit: error: cannot write to stdout: No space left on device\n")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (f"blockaudit inspect {TINY} >&-", 0),
        (f"blockaudit inspect {TINY} >&- 2>&-", 0),
        ("blockaudit inspect no-such >&- 2>&-", 2),
        ("blockaudit inspect no-such 2>&-", 2),
        ("blockaudit inspect no-such 2>/dev/full", 2),
        ("blockaudit --help | true; exit ${PIPESTATUS[0]}", 0),
        ("blockaudit inspect --help >&-", 0),
    ],
)
def test_a_stream_that_nobody_reads_changes_no_status(line: str, status: int) -> None:
    done = shell(line)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


BUG = """
from blockaudit import pipeline
from blockaudit.cli.main import main
pipeline.inspect = lambda source, **options: 1 // 0
main(["inspect", "x"])
"""


def test_a_bug_does_not_say_rejected() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUG],
        capture_output=True,
        cwd=Path(__file__).parents[2],
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("blockaudit: error: internal error, please report it: ZeroDivisionError")
    assert done.stderr.count("\n") == 1


def test_a_terminal_that_knows_only_ascii_is_no_crash() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "blockaudit", "inspect", "no-such-層"],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "PATH": "", "PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"blockaudit: error: ")
    assert rb"no-such-\u5c64" in done.stderr
