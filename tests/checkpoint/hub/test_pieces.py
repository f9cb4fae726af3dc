"""What an audit of a hub leaves in the cache: a help to the next one, and never more than that."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockaudit import kept
from blockaudit.checkpoint.hub import pieces
from blockaudit.checkpoint.hub.pieces import Asked, Pieces
from blockaudit.cli.main import run
from tests.support import sparse
from tests.support.audit import inspect
from tests.support.checkpoint import family, sharded
from tests.support.hub import SOURCE, Hub

Serve = Callable[[Path], Hub]


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The cache, turned on, in a folder of its own."""
    monkeypatch.delenv("BLOCKAUDIT_CACHE", raising=False)
    monkeypatch.setenv("BLOCKAUDIT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hub"


@pytest.fixture
def hub(connected: Serve, tmp_path: Path) -> Hub:
    """A sharded checkpoint."""
    return connected(family("llama", sharded(3))(tmp_path / "model"))


def asked_again(hub: Hub) -> list[str]:
    """Paths of what one more audit asks for; its report is that of the first."""
    hub.forget()
    done = inspect(SOURCE)
    assert done.status == 0, done.err
    return [r.path for r in hub.asked]


LOOKUP = ["/api/models/org/name/revision/main?blobs=true"]


def test_a_second_audit_asks_for_the_revision_alone(hub: Hub, cache: Path) -> None:
    first = inspect(SOURCE)
    hub.forget()
    second = inspect(SOURCE)
    assert [r.path for r in hub.asked] == LOOKUP
    assert second.out == first.out
    (entry,) = cache.iterdir()
    assert entry.stat().st_mode & 0o077 == 0
    assert cache.stat().st_mode & 0o077 == 0


def test_what_was_looked_at_is_the_same_from_the_hub_and_from_the_cache(
    hub: Hub, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    for _ in range(2):
        assert run(["inspect", SOURCE]) == 0
        said.append(capsys.readouterr().out)
    assert " read of " in said[0]
    assert said[0] == said[1]


def test_the_cache_can_be_turned_off(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKAUDIT_CACHE", "off")
    inspect(SOURCE)
    assert len(asked_again(hub)) > 1
    assert not cache.exists()


def test_it_is_small(connected: Serve, cache: Path, tmp_path: Path) -> None:
    hub = connected(sparse.llama(tmp_path / "large"))
    inspect(SOURCE)
    (entry,) = cache.iterdir()
    assert entry.stat().st_size < sparse.size_of(hub.folder) / 100
    assert asked_again(hub) == LOOKUP


def test_entries_that_are_not_whole_are_ignored(hub: Hub, cache: Path) -> None:
    inspect(SOURCE)
    (entry,) = cache.iterdir()
    sound = entry.read_bytes()
    spoilt = (
        b"", sound[:-1], sound + b"x", sound[:40] + bytes([sound[40] ^ 1]) + sound[41:], b"\0" * len(sound),
        sound[len(sound) // 2 :], kept.digest(b"\xc1") + b"\xc1", kept.digest(b"") + b"",
    )  # fmt: skip
    for data in spoilt:
        entry.write_bytes(data)
        assert len(asked_again(hub)) > 1
        assert asked_again(hub) == LOOKUP


def _changed(part: pieces._Part, **change: object) -> pieces._Part:
    return msgspec.structs.replace(part, **change)


CHANGES: dict[str, Callable[[pieces._Stored], pieces._Stored]] = {
    "another format": lambda s: msgspec.structs.replace(s, format=99),
    "another commit": lambda s: msgspec.structs.replace(s, key="0" * 64),
    "another identity": lambda s: msgspec.structs.replace(s, parts=[_changed(p, identity="f" * 64) for p in s.parts]),
    "another size": lambda s: msgspec.structs.replace(s, parts=[_changed(p, size=p.size + 1) for p in s.parts]),
    "beyond the end": lambda s: msgspec.structs.replace(s, parts=[_changed(p, offset=p.size) for p in s.parts]),
    "before the start": lambda s: msgspec.structs.replace(s, parts=[_changed(p, offset=-1) for p in s.parts]),
    "files that are none": lambda s: msgspec.structs.replace(s, parts=[_changed(p, file="x") for p in s.parts]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_entries_that_speak_of_something_else_are_ignored(name: str, hub: Hub, cache: Path) -> None:
    inspect(SOURCE)
    (entry,) = cache.iterdir()
    stored = msgspec.msgpack.decode(kept.read(entry, 1 << 30), type=pieces._Stored)
    kept.write(entry, msgspec.msgpack.encode(CHANGES[name](stored)))
    assert len(asked_again(hub)) > 1
    assert asked_again(hub) == LOOKUP


def test_a_file_that_changed_is_read_anew(hub: Hub, cache: Path) -> None:
    """The commit stays in this test: the listing's identity of the file is enough."""
    inspect(SOURCE)
    path = hub.folder / "config.json"
    path.write_text(path.read_text().replace("1e-06", "1e-05"))
    os.utime(path, ns=(1, 1))
    assert [p.rpartition("/")[2] for p in asked_again(hub)[1:]] == ["config.json"]


def test_another_hub_has_entries_of_its_own(hub: Hub, cache: Path, connected: Serve) -> None:
    inspect(SOURCE)
    other = connected(hub.folder)
    assert len(asked_again(other)) > 1
    assert len(list(cache.iterdir())) == 2


def test_a_failure_keeps_what_was_read(hub: Hub, cache: Path) -> None:
    def fault(request: object) -> bool:
        last = "00003-of" in getattr(request, "path", "")
        if last:
            request.answer(404, b"")  # pyright: ignore[reportAttributeAccessIssue]
        return last

    hub.fault = fault
    assert inspect(SOURCE).status == 2
    hub.fault = None
    assert not [p for p in asked_again(hub) if "00001-of" in p or "index" in p]


def test_a_folder_that_cannot_be_written_is_done_without(hub: Hub, cache: Path) -> None:
    cache.parent.write_text("a file")
    assert len(asked_again(hub)) > 1
    assert len(asked_again(hub)) > 1


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30))))
def test_parts_say_what_the_file_says(spans: list[tuple[int, int]]) -> None:
    file, held, asked = bytes(range(100)), Pieces(), Asked()
    covered: set[int] = set()
    for offset, length in spans:
        held.add("f", offset, file[offset : offset + length])
        asked.add("f", offset, offset + length)
        covered |= set(range(offset, offset + length))
    assert asked.total == len(covered)
    for at in range(100):
        start, data = held.around("f", at)
        assert data == file[start : start + len(data)]
        assert (start <= at < start + len(data)) == (at in covered)
    assert held.around("g", 5) == (5, b"")
