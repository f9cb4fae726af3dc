"""The cache of the executed witness: what it spares, and that nothing is believed that may have changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import msgspec
import pytest

from blockaudit import kept
from blockaudit.graph import cache
from blockaudit.records import contract
from blockaudit.records.contract import Executed, Statement

ROOT = Path(__file__).parents[2]
CONFIG = {"model_type": "made_up", "num_hidden_layers": 2}
NORM = Statement(1e-5, "operators of MadeUp, transformers 1.0: norm.weight", "operators")
ANSWER = Executed(
    contract.Testimony("executed", {"norm.epsilon": NORM, "order": Statement(["mlp"], "x", "y")}), idle=("a",)
)


@dataclass
class World:
    """Two packages that look installed, of which `transformers` counts as imported, and a folder for the cache."""

    site: Path
    folder: Path
    answer: Executed = ANSWER
    runs: list[int] = field(default_factory=lambda: list[int]())

    @property
    def modelling(self) -> Path:
        return self.site / "transformers" / "models" / "made_up.py"

    @property
    def entries(self) -> list[Path]:
        return sorted((self.folder / "graph").glob("*"))

    def ask(self, config: dict[str, Any] = CONFIG) -> Executed:
        def run() -> Executed:
            self.runs.append(1)
            return self.answer

        return cache.remembered(None, config, run)

    def asks_anew(self) -> bool:
        """Whether the next question is put to the class, and not to the disk; what is said is right in either case."""
        before = len(self.runs)
        assert self.ask() == self.answer
        return len(self.runs) > before


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    site = tmp_path / "site"
    for name in ("transformers/__init__.py", "transformers/models/made_up.py", "torch/__init__.py", "torch/version.py"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(f"# {name}\nEPSILON = 1e-5\n")
        os.utime(site / name, (1e9, 1e9))
    (site / "torch-2.0.dist-info").mkdir()
    monkeypatch.setattr(cache, "_package", lambda name: site / name)
    monkeypatch.setattr(cache, "_files", lambda name: sorted((site / name).rglob("*.py")))
    monkeypatch.setattr(cache, "_FOREIGN", False)
    monkeypatch.setenv("BLOCKAUDIT_CACHE", "")
    monkeypatch.setenv("BLOCKAUDIT_CACHE_DIR", str(tmp_path / "cache"))
    return World(site, tmp_path / "cache")


def test_what_was_said_once_is_not_asked_again(world: World) -> None:
    assert world.ask() == world.ask() == world.ask() == ANSWER
    assert len(world.runs) == 1
    assert len(world.entries) == 1


def test_an_answer_comes_from_the_class_as_it_comes_from_the_disk(world: World) -> None:
    """A tuple that the disk would give back as a list is a list the first time too."""
    world.answer = Executed(contract.Testimony("executed", {"x": Statement((1, 2), "", "")}))
    assert world.ask() == world.ask()


def _edit(world: World) -> None:
    """As many bytes, at the same time of day: only the contents tell."""
    before = world.modelling.stat()
    world.modelling.write_text(world.modelling.read_text().replace("1e-5", "1e-6"))
    os.utime(world.modelling, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[World], object]] = {
    "a modelling file is edited": _edit,
    "a modelling file is gone": lambda w: w.modelling.unlink(),
    "transformers itself is edited": lambda w: (w.site / "transformers" / "__init__.py").write_text("EPSILON = 2"),
    "torch has another version": lambda w: (w.site / "torch" / "version.py").write_text("__version__ = '3'"),
    "a package was installed": lambda w: (w.site / "kernels-1.0.dist-info").mkdir(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_it_is_asked_again_when(world: World, change: Callable[[World], object]) -> None:
    assert world.asks_anew()
    assert not world.asks_anew()
    change(world)
    assert world.asks_anew()


@pytest.mark.parametrize(
    "other", [{**CONFIG, "num_hidden_layers": 3}, {**CONFIG, "x": None}, {**CONFIG, "num_hidden_layers": 2.0}, {}]
)
def test_another_config_is_another_question(world: World, other: dict[str, Any]) -> None:
    world.ask()
    world.ask(other)
    assert len(world.runs) == 2


def test_another_version_of_this_package_asks_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ask()
    monkeypatch.setattr(cache, "__version__", "99")
    assert world.asks_anew()


def test_its_own_code_is_part_of_the_question(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    own = world.site / "blockaudit"
    for part in ("graph", "records"):
        shutil.copytree(Path(cache.__file__).parents[1] / part, own / part)
    monkeypatch.setattr(cache, "__file__", str(own / "graph" / "cache.py"))
    for name in ("graph/norms.py", "records/contract.py"):
        world.ask()
        with (own / name).open("a") as file:
            file.write("# edited\n")
        assert world.asks_anew()


def test_a_setting_that_chooses_code_is_part_of_the_question(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ask()
    monkeypatch.setenv("USE_HUB_KERNELS", "YES")
    assert world.asks_anew()


def test_a_question_that_cannot_be_written_down_is_asked(world: World) -> None:
    assert world.ask({"n": 2**70}) == ANSWER
    assert world.entries == []


# -- entries ----------------------------------------------------------------------------------------------------------


def test_every_damaged_byte_and_every_cut_is_seen(world: World) -> None:
    world.ask()
    (entry,) = world.entries
    sound = entry.read_bytes()
    package = world.site / "transformers"
    for place in range(len(sound)):
        entry.write_bytes(sound[:place] + bytes([sound[place] ^ 0x20]) + sound[place + 1 :])
        assert cache._read(entry, entry.stem, package) is None
        entry.write_bytes(sound[:place])
        assert cache._read(entry, entry.stem, package) is None
    entry.write_bytes(sound)
    assert cache._read(entry, entry.stem, package) == ANSWER


@pytest.mark.parametrize("content", [b"", b"garbage", bytes(5000), b"{}" * 100])
def test_a_damaged_entry_is_written_anew(world: World, content: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    world.ask()
    world.entries[0].write_bytes(content)
    assert world.asks_anew()
    assert not world.asks_anew()
    assert capfd.readouterr() == ("", "")


def _sealed(data: bytes) -> bytes:
    return blake2b(data, digest_size=32).digest() + data


def test_an_entry_that_nests_without_end_is_none(world: World) -> None:
    world.ask()
    (entry,) = world.entries
    said = entry.read_bytes()[32:]
    deep = msgspec.msgpack.encode(["mlp"])
    assert said.count(deep) == 1
    entry.write_bytes(_sealed(said.replace(deep, b"\x91" * 100_000 + b"\xc0")))
    assert world.asks_anew()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_what_is_no_file_is_not_waited_for(world: World) -> None:
    world.ask()
    (entry,) = world.entries
    entry.unlink()
    os.mkfifo(entry)
    assert world.asks_anew()
    assert not world.asks_anew()
    entry.unlink()
    entry.symlink_to("/dev/zero")
    assert world.asks_anew()
    assert not world.asks_anew()


def test_an_entry_that_is_far_too_large_is_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ask()
    monkeypatch.setattr(cache, "_LARGEST", 10)
    assert world.asks_anew()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owner here")
def test_what_another_user_wrote_is_not_believed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ask()
    own = world.entries[0].stat().st_uid
    if own == 0:
        os.chown(world.entries[0], 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: own + 1)
    assert world.asks_anew()


def test_an_entry_speaks_under_its_own_key_alone(world: World) -> None:
    world.ask()
    (mine,) = world.entries
    world.answer = Executed(contract.Testimony("executed"), class_name="Other")
    world.ask({"model_type": "other"})
    (other,) = set(world.entries) - {mine}
    mine.write_bytes(other.read_bytes())
    world.answer = ANSWER
    assert world.asks_anew()


@pytest.mark.parametrize("change", [{"format": 0}, {"files": {}}])
def test_an_entry_of_another_kind_is_none(world: World, change: dict[str, Any]) -> None:
    world.ask()
    (entry,) = world.entries
    held = msgspec.msgpack.decode(entry.read_bytes()[32:], type=cache._Entry)
    kept.write(entry, msgspec.msgpack.encode(msgspec.structs.replace(held, **change)))
    assert world.asks_anew()


def test_a_failure_is_not_kept(world: World) -> None:
    world.answer = Executed(contract.Testimony("executed"), failure="RuntimeError: out of memory")
    assert world.asks_anew()
    assert world.asks_anew()
    assert world.entries == []


def test_code_that_was_edited_while_this_process_runs_is_not_kept(world: World) -> None:
    os.utime(world.modelling, (time.time() + 5, time.time() + 5))
    assert world.asks_anew()
    assert world.entries == []


def test_code_that_was_imported_by_others_before_is_not_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_FOREIGN", True)
    assert world.asks_anew()
    assert world.entries == []


# -- the folder -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no", "false"])
def test_it_can_be_turned_off(world: World, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    world.ask()
    monkeypatch.setenv("BLOCKAUDIT_CACHE", word)
    assert world.asks_anew()
    shutil.rmtree(world.folder)
    assert world.asks_anew()
    assert not world.folder.exists()


def test_it_may_be_deleted_at_any_time(world: World) -> None:
    world.ask()
    shutil.rmtree(world.folder)
    assert world.asks_anew()
    assert not world.asks_anew()


def test_a_folder_that_cannot_be_made_is_done_without(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    world.folder.write_text("a file")
    assert world.asks_anew()
    assert world.asks_anew()
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only_is_read(world: World) -> None:
    world.ask()
    (world.folder / "graph").chmod(0o500)
    try:
        assert not world.asks_anew()
        assert world.ask({"model_type": "other"}) == ANSWER
    finally:
        (world.folder / "graph").chmod(0o700)


def test_a_write_that_fails_leaves_nothing_behind(world: World) -> None:
    world.ask()
    (entry,) = world.entries
    entry.unlink()
    entry.mkdir()  # a folder where the entry would go
    assert world.asks_anew()
    assert world.entries == [entry]


def test_entries_are_the_users_own(world: World) -> None:
    world.ask()
    assert world.entries[0].stat().st_mode & 0o077 == 0
    assert world.entries[0].parent.stat().st_mode & 0o077 == 0


def test_many_ask_at_once(world: World) -> None:
    start, said = Barrier(8), list[Executed]()

    def work() -> None:
        start.wait()
        for _ in range(40):
            said.append(world.ask())

    threads = [Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [ANSWER] * 320
    assert len(world.entries) == 1


def test_the_users_cache_folder_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    platformdirs = pytest.importorskip("platformdirs")
    monkeypatch.delenv("BLOCKAUDIT_CACHE")
    monkeypatch.delenv("BLOCKAUDIT_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kept.folder("graph") == Path(platformdirs.user_cache_dir("blockaudit", appauthor=False)) / "graph"


# -- the command line -------------------------------------------------------------------------------------------------

LOOK = """
import sys
from blockaudit.cli.main import run
status = run(sys.argv[1:])
print("loaded:", *(m for m in ("torch", "transformers", "numpy") if m in sys.modules), file=sys.stderr)
sys.exit(status)
"""
needs_torch = pytest.mark.skipif(not (find_spec("torch") and find_spec("transformers")), reason="needs torch")


def _start(cache_dir: Path, form: str) -> subprocess.Popen[str]:
    env = {**os.environ, "BLOCKAUDIT_CACHE": "on", "BLOCKAUDIT_CACHE_DIR": str(cache_dir), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", LOOK, "inspect", "fixtures/tiny_llama", "--level", "graph", "--format", form]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=env, text=True, **pipes)


def _end(process: subprocess.Popen[str]) -> tuple[str, set[str]]:
    """(the report, heavy modules that were loaded)."""
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return out, set(errors.splitlines()[-1].split()[1:])


@needs_torch
def test_a_second_audit_loads_no_torch_and_says_the_same(tmp_path: Path) -> None:
    both = [_start(tmp_path, "json"), _start(tmp_path, "json")]  # at once, in an empty cache
    (cold, loaded), (other, _) = map(_end, both)
    assert "torch" in loaded
    assert cold == other
    assert [p.suffix for p in (tmp_path / "graph").iterdir()] == [".graph"]
    assert _end(_start(tmp_path, "json")) == (cold, set())
    text, loaded = _end(_start(tmp_path, "text"))
    assert loaded == set()
    assert "graph level" in text
