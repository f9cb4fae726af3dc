"""Files that change while they are read: what is gone is not there, and nothing is made up in its place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blockaudit.checkpoint import files
from blockaudit.reconcile import norms
from tests.support.audit import inspect
from tests.support.checkpoint import Tensor, family, header, safetensors
from tests.support.gguf import built

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


def _pickled(folder: Path) -> Path:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    family("llama")(folder)
    whole = folder / "model.safetensors"
    torch.save(load_file(whole), folder / "pytorch_model.bin")
    whole.unlink()
    return folder


def _distributed(folder: Path) -> Path:
    pytest.importorskip("torch")
    from tests.support.distributed import save, weights

    return save(folder, dict(weights()))


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


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("level", ["headers", "values"])
def test_a_file_that_changes_after_its_header_is_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, level: str
) -> None:
    source = family("llama")(tmp_path / "checkpoint")
    _after(monkeypatch, 4, source / "model.safetensors", CHANGES[change])
    outcome = inspect(source, "--level", level)
    assert (outcome.status, outcome.err) == (1, "")
    (finding,) = [f for f in outcome.findings if f["name"] == "unreadable-file"]
    assert finding["subject"] == "model.safetensors"
    assert "audit it again when nothing writes to it" in finding["message"]
    assert "non-finite-values" not in outcome.names


def _touched(path: Path) -> None:
    """The same bytes, of which nobody can know that they are the same."""
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("change", [_touched, _other_file])
@pytest.mark.parametrize(
    ("build", "name"),
    [
        (family("llama"), "model.safetensors"),
        (_pickled, "pytorch_model.bin"),
        (built(lambda draft: None), "model.gguf"),
        (_distributed, "__0_0.distcp"),
    ],
    ids=["safetensors", "torch", "gguf", "distributed"],
)
def test_every_container_remembers_which_file_it_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change, build: Callable[[Path], Path], name: str
) -> None:
    source = build(tmp_path / "checkpoint")
    path = next(source.rglob(name))
    real = norms.read_norms

    def read_norms(*args: Any) -> norms.NormVectors:
        change(path)
        return real(*args)

    monkeypatch.setattr(norms, "read_norms", read_norms)
    outcome = inspect(source)
    assert [f["subject"] for f in outcome.findings if f["name"] == "unreadable-file"] == [path.name]
    assert outcome.status == 1


def test_the_next_audit_reads_the_file_that_is_there_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = family("llama")(tmp_path / "checkpoint")
    with monkeypatch.context() as during:
        _after(during, 4, source / "model.safetensors", _touched)
        assert "unreadable-file" in inspect(source).names
    assert inspect(source).status == 0


def test_a_number_that_cannot_be_read_any_more_is_not_called_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = Tensor("F32", (64,), bytes(256))
    path = safetensors(tmp_path / "model.safetensors", {"norm.weight": tensor})
    assert header({"norm.weight": tensor})["norm.weight"]["data_offsets"] == [0, 256]
    _after(monkeypatch, 2, path, lambda p: os.truncate(p, p.stat().st_size - 128))
    outcome = inspect(path, "--level", "values")
    assert outcome.status != 0
