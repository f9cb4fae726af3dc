"""Where TARGET may be, and what is said of one that is there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from blockaudit.errors import RequestError
from tests.migrate.convert import hand

TYPES: dict[str, tuple[str, tuple[int, ...]]] = {"w": ("F32", (8, 5)), "x": ("F32", (3,))}
PLAN = hand.plan(hand.renamed(TYPES))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return hand.source(tmp_path / "s", TYPES, tokenizer__json=b"{}")


def refused(source: Path, target: Path, match: str) -> None:
    before = hand.hashes(source)
    with pytest.raises(RequestError, match=match) as caught:
        hand.run(source, target, PLAN)
    assert "\n" not in str(caught.value)
    assert hand.hashes(source) == before


def test_never_in_the_source(source: Path, tmp_path: Path) -> None:
    refused(source, source / "t", "TARGET lies in SOURCE")
    refused(source, source, "TARGET is SOURCE")
    (tmp_path / "link").symlink_to(source)
    refused(source, tmp_path / "link" / "t", "TARGET lies in SOURCE")
    assert sorted(p.name for p in source.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_never_around_the_source(tmp_path: Path) -> None:
    refused(hand.source(tmp_path / "t" / "s", TYPES), tmp_path / "t", "SOURCE lies in TARGET")


def test_a_folder_that_is_not_there(source: Path, tmp_path: Path) -> None:
    refused(source, tmp_path / "no" / "t", "TARGET's folder .*no is not there")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_nobody_may_write(source: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    refused(source, tmp_path / "closed" / "t", "cannot be written: permission denied")


def test_a_disk_that_is_read_only(source: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", disk], check=False).returncode:
        pytest.skip("a read-only file system needs root and a system that mounts tmpfs")
    try:
        refused(source, disk / "t", "cannot be written: read-only file system")
    finally:
        subprocess.run(["umount", disk], check=True)


def test_what_is_there_is_left_alone(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "t"
    target.mkdir()
    refused(source, target, "it is there already, and nothing is written over")
    (target / "mine").write_text("mine")
    refused(source, target, "it is there already")
    assert [p.name for p in target.iterdir()] == ["mine"]
    (tmp_path / "file").write_text("mine")
    refused(source, tmp_path / "file", "it is there already")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    refused(source, tmp_path / "nowhere", "it is there already")


def test_this_very_conversion_is_recognised(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "t"
    hand.run(source, target, PLAN)
    before = hand.hashes(target)
    outcome = hand.run(source, target, PLAN)
    assert outcome.was_there
    assert outcome.conversion == hand.report(target)
    assert hand.hashes(target) == before


def test_another_conversion_is_not(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "t"
    hand.run(source, target, PLAN)
    with pytest.raises(RequestError, match="the conversion of another source or by another map"):
        hand.run(source, target, hand.plan(hand.renamed(TYPES, "other.")))
    other = hand.source(tmp_path / "z", {"w": ("F32", (8, 5)), "x": ("F32", (3,))})
    data = bytearray((other / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (other / "model.safetensors").write_bytes(data)
    refused(other, target, "the conversion of another source")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "rollback.json"])
def test_a_conversion_that_was_changed_since_is_not(source: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "t"
    hand.run(source, target, PLAN)
    path = target / name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    refused(source, target, f"{name} in it was changed since it was written")
    path.unlink()
    refused(source, target, f"{name} in it is not whole")


def test_a_report_that_names_files_elsewhere_is_not_followed(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "t"
    hand.run(source, target, PLAN)
    report = target / "conversion-report.json"
    report.write_text(report.read_text().replace('"rollback.json"', '"../rollback.json"'))
    refused(source, target, "names files outside of it")


def test_one_without_hashes_cannot_be_told(source: Path, tmp_path: Path) -> None:
    hand.run(source, tmp_path / "t", PLAN, hashing=False)
    refused(source, tmp_path / "t", "made without hashes")


def test_links_out_of_the_source_do_not_go_along(source: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (source / "LICENSE").symlink_to(tmp_path / "secret")
    (source / "merges.txt").symlink_to("tokenizer.json")
    hand.run(source, tmp_path / "t", PLAN)
    assert [row.name for row in hand.report(tmp_path / "t").carried] == ["merges.txt", "tokenizer.json"]
    assert not (tmp_path / "t" / "merges.txt").is_symlink()


def test_the_folder_of_a_file_is_no_part_of_it(tmp_path: Path) -> None:
    folder = hand.source(tmp_path / "s", TYPES, tokenizer__json=b"{}")
    hand.run(folder / "model.safetensors", folder / "t", PLAN)
    assert (folder / "t" / "tokenizer.json").exists()
    (folder / "config.json").unlink()
    hand.run(folder / "model.safetensors", folder / "u", PLAN)
    assert not (folder / "u" / "tokenizer.json").exists()
