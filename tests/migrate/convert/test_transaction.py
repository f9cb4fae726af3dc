from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from blockaudit.errors import RequestError
from blockaudit.migrate.convert import finish, weights, workplace
from blockaudit.migrate.convert.layout import Work
from tests.migrate.convert import hand

TYPES: dict[str, tuple[str, tuple[int, ...]]] = {f"layers.{n}.w": ("F32", (64, 50 + n)) for n in range(6)}
PLAN = hand.plan(hand.renamed(TYPES))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return hand.source(tmp_path / "s", TYPES, tokenizer__json=b'{"model": {}}', LICENSE=b"free", notes__txt=b"mine")


class Ended(Exception):
    pass


def stop_after(monkeypatch: pytest.MonkeyPatch, works: int) -> list[int]:
    """Let so many pieces of work be made, then fail; the list counts those made."""
    made: list[int] = []
    really = weights.FileWriter._made

    def make(self: weights.FileWriter, work: Work) -> Any:
        if len(made) == works:
            raise Ended
        made.append(work.unit)
        return really(self, work)

    monkeypatch.setattr(weights.FileWriter, "_made", make)
    return made


def ended_after(works: int, source: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, works)
        with pytest.raises(Ended):
            hand.run(source, target, PLAN)


# -- what stands in the target ----------------------------------------------------------------------------------------


def test_the_target_is_whole(source: Path, tmp_path: Path) -> None:
    hand.run(source, tmp_path / "t", PLAN)
    assert sorted(p.name for p in (tmp_path / "t").iterdir()) == [
        "LICENSE", "config.json", "conversion-report.json", "model.safetensors", "rollback.json", "tokenizer.json",
    ]  # fmt: skip
    was, now = hand.loaded(source), hand.loaded(tmp_path / "t")
    assert now.keys() == {f"model.{key}" for key in was}
    assert all((now[f"model.{key}"] == was[key]).all() for key in was)
    assert not hand.partial(tmp_path / "t").exists()


def test_the_hashes_are_those_of_the_files(source: Path, tmp_path: Path) -> None:
    hand.run(source, tmp_path / "t", PLAN, most=30_000)
    found, mine, other = hand.report(tmp_path / "t"), hand.hashes(source), hand.hashes(tmp_path / "t")
    assert {row.name: row.sha256 for row in found.source.files} == {"model.safetensors": mine["model.safetensors"]}
    rows = {row.name: row.sha256 for row in (*found.target.files, *found.carried, *found.written)}
    assert rows == {name: sha256 for name, sha256 in other.items() if name != "conversion-report.json"}
    assert len(found.target.files) == 3
    assert all((tmp_path / "t" / row.name).stat().st_size == row.size for row in (*found.target.files, *found.written))


def test_the_same_input_gives_the_same_bytes(source: Path, tmp_path: Path) -> None:
    hand.run(source, tmp_path / "t", PLAN)
    hand.run(source, tmp_path / "elsewhere", PLAN)
    assert hand.hashes(tmp_path / "t") == hand.hashes(tmp_path / "elsewhere")
    text = (tmp_path / "t" / "conversion-report.json").read_text()
    assert str(tmp_path) not in text
    assert os.uname().nodename not in text


def test_without_hashes_only_small_files_have_them(source: Path, tmp_path: Path) -> None:
    hand.run(source, tmp_path / "t", PLAN, hashing=False)
    hand.run(source, tmp_path / "u", PLAN)
    found = hand.report(tmp_path / "t")
    assert (found.source.semantic, found.target.semantic, found.target.files[0].sha256) == ("", "", "")
    names = ("model.safetensors", "config.json", "tokenizer.json")
    assert [hand.hashes(tmp_path / "t")[n] for n in names] == [hand.hashes(tmp_path / "u")[n] for n in names]


# -- taken up again ---------------------------------------------------------------------------------------------------


def test_a_run_that_was_ended_is_taken_up(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hand.run(source, tmp_path / "reference", PLAN)
    ended_after(4, source, tmp_path / "t", monkeypatch)
    assert not (tmp_path / "t").exists()
    assert not any(p.suffix == ".safetensors" for p in (hand.partial(tmp_path / "t") / "whole").iterdir())
    made = stop_after(monkeypatch, 99)
    outcome = hand.run(source, tmp_path / "t", PLAN)
    assert outcome.remarks == (f"{tmp_path / 't'}: taken up where an earlier run stood (.t.blockaudit-partial)",)
    assert made == [4, 5]
    assert hand.hashes(tmp_path / "t") == hand.hashes(tmp_path / "reference")


def test_what_was_spoilt_meanwhile_is_made_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hand.run(source, tmp_path / "reference", PLAN)
    ended_after(4, source, tmp_path / "t", monkeypatch)
    part = hand.partial(tmp_path / "t") / "whole" / "model.safetensors.part"
    data = bytearray(part.read_bytes())
    data[int.from_bytes(data[:8], "little") + 8 + sum(4 * 64 * (50 + n) for n in range(4)) - 1] ^= 1  # of the fourth
    part.write_bytes(data)
    made = stop_after(monkeypatch, 99)
    hand.run(source, tmp_path / "t", PLAN)
    assert made == [3, 4, 5]
    assert hand.hashes(tmp_path / "t") == hand.hashes(tmp_path / "reference")


@pytest.mark.parametrize("change", ["plan", "source", "size"])
def test_a_journal_of_something_else_is_discarded(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    ended_after(4, source, tmp_path / "t", monkeypatch)
    plan, options = PLAN, {}
    if change == "plan":
        plan = hand.plan(hand.renamed(TYPES, "other."))
    elif change == "source":
        os.utime(source / "model.safetensors", ns=(1, 1))
    else:
        options = {"most": 30_000}
    made = stop_after(monkeypatch, 99)
    outcome = hand.run(source, tmp_path / "t", plan, **options)
    assert "is discarded" in outcome.remarks[0]
    assert sorted(made) == list(range(6))
    monkeypatch.undo()
    hand.run(source, tmp_path / "u", plan, **options)
    assert hand.hashes(tmp_path / "t") == hand.hashes(tmp_path / "u")


def test_a_torn_last_line_of_the_journal_is_cut_off(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_after(4, source, tmp_path / "t", monkeypatch)
    journal = hand.partial(tmp_path / "t") / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    made = stop_after(monkeypatch, 99)
    hand.run(source, tmp_path / "t", PLAN)
    assert made == [3, 4, 5]


def test_ended_between_the_final_names_and_the_rename(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.run(source, tmp_path / "reference", PLAN)

    def fail(*_: Any) -> None:
        raise Ended

    with monkeypatch.context() as patch:
        patch.setattr(finish, "publish", fail)
        with pytest.raises(Ended):
            hand.run(source, tmp_path / "t", PLAN)
    assert (hand.partial(tmp_path / "t") / "whole" / "config.json").exists()
    made = stop_after(monkeypatch, 0)
    hand.run(source, tmp_path / "t", PLAN)
    assert made == []
    assert hand.hashes(tmp_path / "t") == hand.hashes(tmp_path / "reference")


# -- one at a time ----------------------------------------------------------------------------------------------------


def test_a_second_converter_says_who_is_first(source: Path, tmp_path: Path) -> None:
    first = rf"another blockaudit convert \(process {os.getpid()}\) is writing it"
    with workplace.Workplace(str(tmp_path / "t")), pytest.raises(RequestError, match=first):
        hand.run(source, tmp_path / "t", PLAN)
    hand.run(source, tmp_path / "t", PLAN)


def test_of_many_at_once_one_writes(source: Path, tmp_path: Path) -> None:
    results: list[str] = []

    def convert() -> None:
        try:
            results.append("was there" if hand.run(source, tmp_path / "t", PLAN).was_there else "written")
        except RequestError as error:
            told = "is writing it" in str(error) or "made by another process" in str(error)
            results.append("told" if told else str(error))

    threads = [threading.Thread(target=convert) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert results.count("written") == 1
    assert set(results) <= {"written", "told", "was there"}
    hand.loaded(tmp_path / "t")
    assert not hand.partial(tmp_path / "t").exists()


# -- a source that changes --------------------------------------------------------------------------------------------


def test_a_source_that_changes_while_it_is_read(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = weights.FileWriter._made

    def make(self: weights.FileWriter, work: Work) -> Any:
        if work.unit == 3:
            with (source / "model.safetensors").open("r+b") as file:
                file.seek(-1, 2)
                file.write(b"\xff")
        return really(self, work)

    monkeypatch.setattr(weights.FileWriter, "_made", make)
    with pytest.raises(RequestError, match=r"model.safetensors: it changed while it was read"):
        hand.run(source, tmp_path / "t", PLAN)
    assert not (tmp_path / "t").exists()


def test_a_source_that_changed_since_the_plan_was_made(source: Path, tmp_path: Path) -> None:
    asked = hand.request(source, tmp_path / "t", PLAN)
    hand.source(source, dict.fromkeys(TYPES, ("F32", (64, 51))))
    from blockaudit.migrate.convert.transaction import convert

    with pytest.raises(RequestError, match="it changed while it was read"):
        convert(asked)


def test_a_source_that_is_cut_off_meanwhile(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = weights.FileWriter._made

    def make(self: weights.FileWriter, work: Work) -> Any:
        if work.unit == 1:
            os.truncate(source / "model.safetensors", 20_000)
        return really(self, work)

    monkeypatch.setattr(weights.FileWriter, "_made", make)
    for hashing in (True, False):
        with pytest.raises(RequestError, match=r"it was cut off while it was read|changed while it was read"):
            hand.run(source, tmp_path / "t", PLAN, hashing=hashing)
        assert not (tmp_path / "t").exists()
        hand.source(source, TYPES)


# -- ended in other ways ----------------------------------------------------------------------------------------------


def test_ended_between_the_rename_and_the_tidying(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(workplace.Workplace, "remove", lambda _: None)
        hand.run(source, tmp_path / "t", PLAN)
    assert hand.partial(tmp_path / "t").exists()
    assert hand.run(source, tmp_path / "t", PLAN).was_there
    assert not hand.partial(tmp_path / "t").exists()


def test_an_interrupt_is_heard_and_leaves_what_can_be_taken_up(source: Path, tmp_path: Path) -> None:
    seen: list[int] = []

    def progress(_: str, done: int, __: int) -> None:
        if not seen and done > 30_000:
            seen.append(done)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)

    with pytest.raises(KeyboardInterrupt):
        hand.run(source, tmp_path / "t", PLAN, progress=progress)
    assert not (tmp_path / "t").exists()
    assert hand.run(source, tmp_path / "t", PLAN).remarks


def test_a_link_in_the_place_of_the_partial_folder_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    hand.partial(tmp_path / "t").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RequestError, match="is a link: delete it"):
        hand.run(source, tmp_path / "t", PLAN)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_tensor_that_cannot_be_read_is_told_at_once(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.arange(6.0).reshape(2, 3), "x": torch.arange(6.0).reshape(2, 3).T}, tmp_path / "s.pth")
    plan = hand.plan(hand.renamed({"w": ("F32", (2, 3))}))
    with pytest.raises(RequestError, match="x: its elements do not lie side by side"):
        hand.run(tmp_path / "s.pth", tmp_path / "t", plan)
    assert not hand.partial(tmp_path / "t").exists()


def test_a_pickle_is_copied_by_its_byte_ranges(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weights = {"w": torch.arange(6.0).reshape(2, 3), "x": torch.arange(5, dtype=torch.bfloat16)}
    torch.save(weights, tmp_path / "s.pth")
    types = {"w": ("F32", (2, 3)), "x": ("BF16", (5,))}
    hand.run(tmp_path / "s.pth", tmp_path / "t", hand.plan(hand.renamed(types)))
    now = hand.loaded(tmp_path / "t")
    assert all(torch.equal(now[f"model.{key}"], weights[key]) for key in weights)
