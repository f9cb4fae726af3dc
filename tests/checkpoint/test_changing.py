"""Files that change while they are read: what is gone is not there, and nothing is made up in its place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from blockaudit.checkpoint import files
from tests.support.audit import inspect
from tests.support.checkpoint import Tensor, family, header, safetensors

Change = Callable[[Path], object]


def _after(monkeypatch: pytest.MonkeyPatch, reads: int, path: Path, change: Change) -> None:
    """Change a file once so many reads of weights have been made."""
    real, left = files.pread_all, [reads]

    def read(fd: int, length: int, offset: int) -> bytes:
        if os.path.samestat(os.fstat(fd), os.stat(path)) or left[0] == 0:
            left[0] -= 1
            if left[0] == -1:
                change(path)
        return real(fd, length, offset)

    monkeypatch.setattr(files, "pread_all", read)


def _other_file(path: Path) -> None:
    spare = path.with_name("spare")
    spare.write_bytes(b"\0" * path.stat().st_size)
    spare.replace(path)


def _other_header(path: Path) -> None:
    """Other tensors under the old length: the file is written over in its place."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    path.write_bytes(raw[:8] + b"{}".ljust(length) + raw[8 + length :])


CHANGES: dict[str, Change] = {
    "cut off": lambda path: os.truncate(path, 100),
    "emptied": lambda path: os.truncate(path, 0),
    "taken away": Path.unlink,
    "replaced": _other_file,
    "written over": _other_header,
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("reads", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("level", ["headers", "values"])
def test_an_audit_ends_in_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, reads: int, level: str
) -> None:
    source = family("llama")(tmp_path / "checkpoint")
    _after(monkeypatch, reads, source / "model.safetensors", CHANGES[change])
    outcome = inspect(source, "--level", level)
    assert outcome.status in (0, 1, 3)
    assert outcome.err == ""


@pytest.mark.parametrize(("change", "rule"), [("cut off", "corrupt-header"), ("written over", "header-gap")])
def test_a_header_that_changes_is_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, rule: str
) -> None:
    source = family("llama")(tmp_path / "checkpoint")
    path = source / "model.safetensors"
    # The container is told apart (one read), then come the length of the header and the header.
    _after(monkeypatch, 2, path, CHANGES[change])
    assert rule in inspect(source).names


def test_a_number_that_cannot_be_read_any_more_is_not_called_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = Tensor("F32", (64,), bytes(256))
    path = safetensors(tmp_path / "model.safetensors", {"norm.weight": tensor})
    assert header({"norm.weight": tensor})["norm.weight"]["data_offsets"] == [0, 256]
    _after(monkeypatch, 2, path, lambda p: os.truncate(p, p.stat().st_size - 128))
    outcome = inspect(path, "--level", "values")
    assert outcome.status != 0
