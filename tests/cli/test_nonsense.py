"""Option values that name nothing that can be used: one clear line, status 2, and nothing waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Outcome
from tests.support.checkpoint import family

Run = Callable[..., Outcome]
LONG = "x" * 300
KINDS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a hole of 20 GB": lambda path: (path.touch(), os.truncate(path, 20 << 30)),
    "bytes of every value": lambda path: path.write_bytes(bytes(range(256))),
}
READ = {"--manifest": ".json", "--baseline": ".json", "--config": ".toml"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    family("llama")(tmp_path / "ok")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def one_line(outcome: Outcome) -> str:
    assert outcome.status == 2, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("blockaudit: error: ")
    assert outcome.err.count("\n") == 1
    assert outcome.err[:-1].isprintable()
    return outcome.err


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", READ)
def test_a_file_that_is_read(blockaudit: Run, here: Path, option: str, kind: str) -> None:
    path = here / f"given{READ[option]}"
    KINDS[kind](path)
    assert path.name in one_line(blockaudit("inspect", "ok", option, path.name))


@pytest.mark.parametrize("option", READ)
@pytest.mark.parametrize("name", ["", LONG, "no/such/folder/x", "a\nb\x1b[2J", "\u202e"])
def test_a_name_of_what_is_read(blockaudit: Run, here: Path, option: str, name: str) -> None:
    one_line(blockaudit("inspect", "ok", option, f"{name}{READ[option]}" if name else ""))


@pytest.mark.parametrize(("option", "suffix"), [("--report", ".html"), ("--write-baseline", ".json")])
@pytest.mark.parametrize("name", [LONG, "no/such/folder/x", "\x1b/x"])
def test_a_name_of_what_is_written(blockaudit: Run, here: Path, option: str, suffix: str, name: str) -> None:
    """The audit was made, and its report is shown all the same."""
    outcome = blockaudit("inspect", "ok", option, f"{name}{suffix}")
    assert (outcome.status, outcome.err.count("\n")) == (2, 1)
    assert outcome.out.startswith("ACCEPTED")
    assert f"cannot write {option}" in outcome.err
    assert outcome.err[:-1].isprintable()


@pytest.mark.parametrize(
    "argv",
    [
        ["inspect", ""], ["inspect", LONG], ["inspect", "a\x1b[2J\nb"], ["inspect", "/dev/zero"],
        ["inspect", "/dev/null"],
        ["inspect", "ok", "--level", ""], ["inspect", "ok", "--level", "headers,,"], ["inspect", "ok", "--level", LONG],
        ["inspect", "ok", "--format", ""], ["inspect", "ok", "--format", "\x1b"], ["inspect", "ok", "--select", LONG],
        ["inspect", "ok", "--ignore", "\u202e"], ["inspect", "hf://"], ["inspect", "hf://a/b@../../x"], ["nonsense"],
        ["explain", ""], ["explain", "\x1b[2J"], ["explain", LONG], ["rules", "--format", ""],
        ["manifest", "show", LONG], ["manifest", "show", ""], ["manifest", "check", "ok"],
        ["manifest", "diff", "llama", ""],
        ["manifest", "draft", "", "--level", "headers"], ["manifest", "nonsense"], ["trace", "show", LONG],
        ["trace", "show", ""], ["trace", "show", "/dev/zero"], ["trace", "show", "ok"],
        ["conform", "ok", "--seed", "9" * 30], ["conform", "ok", "--seq-len", "9" * 30],
        ["conform", "ok", "--batch", "0"],
        ["trace", "record", "ok", "--seed", "9" * 30],
        ["inspect", "ok", "--level", "graph", "--candidate", f"{LONG}.py:x"],
    ],
    ids=lambda argv: " ".join(argv)[:40].encode("unicode_escape").decode(),
)  # fmt: skip
def test_words_that_mean_nothing(blockaudit: Run, here: Path, argv: list[str]) -> None:
    one_line(blockaudit(*argv))


@pytest.mark.parametrize("device", ["", "x", "cuda:99", "meta"])
def test_a_device_that_holds_no_numbers(blockaudit: Run, here: Path, device: str) -> None:
    pytest.importorskip("torch")
    assert f"--device {device}" in one_line(blockaudit("conform", "ok", "--device", device))
