from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.checkpoint.build import index, only, opened, rules, safetensors, sharded

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
NAME = "model.safetensors.index.json"


def test_two_shards(tmp_path: Path) -> None:
    ckpt = opened(sharded(tmp_path))
    assert ckpt.faults == ()
    assert (ckpt.format, [f.name for f in ckpt.files]) == ("sharded-safetensors", [FIRST, SECOND])
    assert {key: file.name for key, file in ckpt.owner.items()} == {"a": FIRST, "b": SECOND}
    assert [f.path for f in ckpt.files] == [str(tmp_path / FIRST), str(tmp_path / SECOND)]


def test_the_index_itself_as_source(tmp_path: Path) -> None:
    ckpt = opened(sharded(tmp_path) / NAME)
    assert ckpt.faults == ()
    assert list(ckpt.tensors) == ["a", "b"]


def test_shard_missing(tmp_path: Path) -> None:
    (sharded(tmp_path) / SECOND).unlink()
    ckpt = opened(tmp_path)
    fault = only(ckpt)
    assert (fault.rule, fault.file, fault.tensors) == ("shard-missing", SECOND, ("b",))
    assert (fault.expected, fault.observed) == (2, 1)
    assert not ckpt.readable


def test_many_missing_shards_take_no_long_time(tmp_path: Path) -> None:
    """Once every shard was looked up in a list of those that are not there: four times as many took 16 times."""

    def seconds(count: int) -> float:
        index(tmp_path, {f"w{i}": f"m{i}.safetensors" for i in range(count)}, None)
        started = time.process_time()
        fault = only(opened(tmp_path))
        assert (fault.rule, len(fault.tensors), fault.observed) == ("shard-missing", count, 0)
        return time.process_time() - started

    few = min(seconds(5_000) for _ in range(3))
    assert min(seconds(20_000) for _ in range(2)) < 8 * few


def test_a_dangling_link_is_a_missing_shard(tmp_path: Path) -> None:
    (sharded(tmp_path) / SECOND).unlink()
    (tmp_path / SECOND).symlink_to("../../blobs/nothing")
    assert only(opened(tmp_path)).rule == "shard-missing"


def test_shard_unlisted(tmp_path: Path) -> None:
    sharded(tmp_path)
    safetensors(tmp_path / "model-00003-of-00003.safetensors", {"c": ("F32", (1,))})
    safetensors(tmp_path / "other-00001-of-00001.safetensors", {"c": ("F32", (1,))})
    fault = only(opened(tmp_path))
    assert (fault.rule, fault.file) == ("shard-unlisted", "model-00003-of-00003.safetensors")


def test_a_key_is_not_in_its_shard(tmp_path: Path) -> None:
    sharded(tmp_path)
    index(tmp_path, {"a": FIRST, "b": SECOND, "c": SECOND}, 16)
    fault = only(opened(tmp_path))
    assert (fault.rule, fault.file, fault.tensors) == ("index-mismatch", SECOND, ("c",))


def test_a_key_is_in_another_shard(tmp_path: Path) -> None:
    sharded(tmp_path)
    index(tmp_path, {"a": SECOND, "b": SECOND}, 16)
    ckpt = opened(tmp_path)
    assert set(rules(ckpt)) == {"index-mismatch", "shard-unlisted"}
    assert ckpt.faults[-1].tensors == ("a",)


def test_a_shard_holds_what_the_index_does_not_list(tmp_path: Path) -> None:
    sharded(tmp_path)
    safetensors(tmp_path / SECOND, {"b": ("F32", (2,)), "c": ("F32", (2,))})
    index(tmp_path, {"a": FIRST, "b": SECOND}, 24)
    ckpt = opened(tmp_path)
    assert (only(ckpt).rule, only(ckpt).tensors) == ("index-mismatch", ("c",))
    assert "c" in ckpt.tensors


def test_a_key_in_two_shards(tmp_path: Path) -> None:
    sharded(tmp_path)
    safetensors(tmp_path / FIRST, {"a": ("F32", (2,)), "b": ("F32", (3,))})
    index(tmp_path, {"a": FIRST, "b": SECOND}, 28)
    ckpt = opened(tmp_path)
    assert (only(ckpt).rule, only(ckpt).tensors) == ("duplicate-key", ("b",))
    assert (ckpt.owner["b"].name, ckpt.tensors["b"].shape) == (SECOND, (2,))


def test_a_key_twice_in_the_index(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / NAME).write_text(f'{{"weight_map": {{"a": "{SECOND}", "a": "{FIRST}", "b": "{SECOND}"}}}}')
    assert (only(opened(tmp_path)).rule, only(opened(tmp_path)).tensors) == ("duplicate-key", ("a",))


def test_total_size(tmp_path: Path) -> None:
    sharded(tmp_path)
    index(tmp_path, {"a": FIRST, "b": SECOND}, 17)
    fault = only(opened(tmp_path))
    assert (fault.rule, fault.expected, fault.observed) == ("total-size-mismatch", 16, 17)
    assert "16" in fault.message
    assert "17" in fault.message
    assert "file sizes" not in fault.message


def test_total_size_that_counts_files(tmp_path: Path) -> None:
    sharded(tmp_path)
    total = sum((tmp_path / name).stat().st_size for name in (FIRST, SECOND))
    index(tmp_path, {"a": FIRST, "b": SECOND}, total)
    assert "sum of the file sizes" in only(opened(tmp_path)).message


def test_total_size_as_a_float_and_absent(tmp_path: Path) -> None:
    sharded(tmp_path)
    weight_map = json.loads((tmp_path / NAME).read_text())["weight_map"]
    for metadata in ({"total_size": 16.0}, {}, {"total_parameters": 4, "total_size": 16}):
        (tmp_path / NAME).write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))
        assert opened(tmp_path).faults == ()


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/hostname", "a/../../x", "", ".", "sub/../a", "x\0y"])
def test_names_that_lead_out_are_not_opened(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    safetensors(tmp_path / "secret.safetensors", {"b": ("F32", (2,))})
    safetensors(folder / "a.safetensors", {"a": ("F32", (2,))})
    index(folder, {"a": "a.safetensors", "b": name}, None)
    ckpt = opened(folder)
    assert (only(ckpt).rule, only(ckpt).tensors) == ("index-mismatch", ("b",))
    assert list(ckpt.tensors) == ["a"]


def test_a_linked_folder_that_leads_out_is_not_opened(tmp_path: Path) -> None:
    outside, folder = tmp_path / "out", tmp_path / "in"
    outside.mkdir()
    folder.mkdir()
    safetensors(outside / "b.safetensors", {"b": ("F32", (2,))})
    (folder / "sub").symlink_to(outside)
    index(folder, {"b": "sub/b.safetensors"}, None)
    assert only(opened(folder)).rule == "index-mismatch"


def test_a_subfolder_is_fine(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    safetensors(tmp_path / "sub" / "b.safetensors", {"b": ("F32", (2,))})
    index(tmp_path, {"b": "sub/b.safetensors"}, 8)
    assert opened(tmp_path).faults == ()


def test_a_hugging_face_cache_is_made_of_links(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    sharded(blobs)
    for name in os.listdir(blobs):
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    ckpt = opened(snapshot)
    assert ckpt.faults == ()
    assert list(ckpt.tensors) == ["a", "b"]


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    (sharded(tmp_path) / SECOND).unlink()
    os.mkfifo(tmp_path / SECOND)
    ckpt = opened(tmp_path)
    assert rules(ckpt) == ["unreadable-file"]
    assert not ckpt.readable


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "[" * 100_000, '{"weight_map": NaN}']
)
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    ckpt = opened(tmp_path)
    assert (only(ckpt).rule, only(ckpt).file) == ("unreadable-file", NAME)
    assert not ckpt.readable


def test_faults_of_a_shard_come_with_its_name(tmp_path: Path) -> None:
    path = sharded(tmp_path) / SECOND
    path.write_bytes(path.read_bytes()[:-4])
    fault = only(opened(tmp_path))
    assert (fault.rule, fault.file) == ("truncated-file", SECOND)
