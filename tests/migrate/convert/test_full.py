from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockaudit.errors import RequestError
from blockaudit.migrate.convert import workplace
from tests.migrate.convert import hand, interrupted

TYPES: dict[str, tuple[str, tuple[int, ...]]] = {f"layers.{n}.w": ("F32", (256, 500 + n)) for n in range(8)}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB, which the conversion of these types does not fit into."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", folder], check=False).returncode:
        pytest.skip("a small file system needs root and a system that mounts tmpfs")
    yield folder
    subprocess.run(["umount", folder], check=True)


def grow(folder: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(tmp_path: Path, small_disk: Path) -> None:
    source = hand.source(tmp_path / "s", TYPES)
    with pytest.raises(RequestError, match=r"its device has [\d,]+ bytes free, and the conversion needs [\d,]+ more"):
        hand.run(source, small_disk / "t", hand.plan(hand.renamed(TYPES)))
    assert not (small_disk / "t").exists()
    assert hand.hashes(hand.partial(small_disk / "t") / "whole") == {}


@pytest.mark.parametrize("hashing", [True, False])
def test_a_disk_that_fills_up_meanwhile(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, hashing: bool
) -> None:
    source, plan = hand.source(tmp_path / "s", TYPES), hand.plan(hand.renamed(TYPES))
    before = hand.hashes(source)
    monkeypatch.setattr(workplace.Workplace, "check_room", lambda *_: None)
    with pytest.raises(RequestError, match=r"no room left to write it .* run the same command again"):
        hand.run(source, small_disk / "t", plan, hashing=hashing)
    assert not (small_disk / "t").exists()
    grow(small_disk, "32m")
    outcome = hand.run(source, small_disk / "t", plan, hashing=hashing)
    assert any("taken up" in line for line in outcome.remarks)
    assert hand.loaded(small_disk / "t").keys() == {f"model.{key}" for key in TYPES}
    assert hand.hashes(source) == before


def full_at(times: int, tmp_path: Path) -> None:
    """So often: a file that may not grow beyond a random size, then the same command with room."""
    source, plan = hand.source(tmp_path / "s", TYPES), hand.plan(hand.renamed(TYPES))
    before = hand.hashes(source)
    hand.run(source, tmp_path / "reference", plan)
    wanted = hand.hashes(tmp_path / "reference")
    size, random_ = (tmp_path / "reference" / "model.safetensors").stat().st_size, random.Random(6)
    for n in range(times):
        target = tmp_path / f"t{n}"

        def convert(target: Path = target) -> int:
            try:
                hand.run(source, target, plan)
            except RequestError as error:
                return 2 if "no room left" in str(error) else 3
            return 0

        assert interrupted.limited(convert, random_.randrange(1, size)) == 2
        assert not interrupted.whole_or_absent(target, wanted)
        hand.run(source, target, plan)
        assert interrupted.whole_or_absent(target, wanted)
        assert not hand.partial(target).exists()
    assert hand.hashes(source) == before


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    full_at(5, tmp_path)
