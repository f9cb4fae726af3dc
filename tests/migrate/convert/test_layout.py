from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockaudit.errors import RequestError
from blockaudit.migrate.convert.layout import index_of, lay_out, nbytes
from blockaudit.records.migration import Filled, TensorType
from blockaudit.records.operations import Split
from tests.migrate.convert import hand

TYPES = {"a": ("BF16", (4, 8)), "b": ("BF16", (16, 8)), "c": ("BF16", (8,)), "d": ("BF16", (3, 8))}


def place(key: str) -> tuple[int, int]:
    return 0, sorted(TYPES).index(key)


def test_tensors_lie_as_the_source_has_them() -> None:
    steps = list(reversed(hand.renamed(TYPES)))
    (file,) = lay_out(hand.plan(steps), place, 10**9)
    assert [w.outputs[0].key for w in file.works] == ["model.a", "model.b", "model.c", "model.d"]
    assert file.name == "model.safetensors"
    assert index_of([file]) is None


def test_the_header_is_the_formats() -> None:
    (file,) = lay_out(hand.plan(hand.renamed(TYPES)), place, 10**9)
    length = int.from_bytes(file.head[:8], "little")
    assert length % 8 == 0
    assert len(file.head) == 8 + length
    header = json.loads(file.head[8:])
    assert header.pop("__metadata__") == {"format": "pt"}
    assert header["model.b"] == {"dtype": "BF16", "shape": [16, 8], "data_offsets": [64, 320]}
    assert file.size == len(file.head) + 64 + 256 + 16 + 48


def test_copies_lie_in_a_block_as_the_source_has_them() -> None:
    for offset, wanted in ((3000, 3000), (8192, 0), (8191, None)):
        (file,) = lay_out(hand.plan(hand.renamed(TYPES)), lambda key, at=offset: (0, at + "abcd".index(key)), 10**9)
        start = file.works[0].outputs[0].start
        assert start == len(file.head)
        assert start % 8 == 0
        assert wanted is None or start % 4096 == wanted
        assert json.loads(file.head[8:])["model.a"]["data_offsets"] == [0, 64]


def test_files_hold_at_most_so_much_or_one_tensor() -> None:
    # 64, 256, 16 and 48 bytes.
    files = lay_out(hand.plan(hand.renamed(TYPES)), place, 80)
    assert [[w.outputs[0].key for w in f.works] for f in files] == [["model.a"], ["model.b"], ["model.c", "model.d"]]
    assert [f.name for f in files] == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    index = json.loads(index_of(files) or b"")
    assert index["metadata"]["total_size"] == 64 + 256 + 16 + 48
    assert index["weight_map"]["model.c"] == "model-00003-of-00003.safetensors"


def test_a_step_whose_outputs_fill_more_than_a_file_is_cut_between_them() -> None:
    split = hand.step(TYPES, ["b"], [Split(dim=0, count=4)], ["w", "x", "y", "z"])
    files = lay_out(hand.plan([split]), place, 128)
    assert [[p.key for w in f.works for p in w.outputs] for f in files] == [["w", "x"], ["y", "z"]]


def test_every_tensor_is_aligned_to_its_elements() -> None:
    types = {"a": ("U8", (3,)), "b": ("F32", (2,)), "c": ("BF16", (1,)), "d": ("F64", (1,))}
    (file,) = lay_out(hand.plan(hand.renamed(types)), lambda key: (0, "abcd".index(key)), 10**9)
    placed = [p for w in file.works for p in w.outputs]
    assert [p.key[-1] for p in placed] == ["d", "b", "c", "a"]
    assert all((p.start - len(file.head)) % (nbytes(p.type) // max(1, p.type.shape[0])) == 0 for p in placed)
    assert [p.start for p in placed[1:]] == [p.stop for p in placed[:-1]]


def test_what_nothing_feeds_comes_last() -> None:
    filled = Filled("new", TensorType("BF16", (8,)), "zeros", "no bias there")
    (file,) = lay_out(hand.plan(hand.renamed(TYPES), filled=[filled]), place, 10**9)
    assert file.works[-1].outputs[0].key == "new"


def test_a_dtype_that_safetensors_lacks_is_refused() -> None:
    with pytest.raises(RequestError, match="is no type that a safetensors file can hold"):
        nbytes(TensorType("Q4_K", (256,)))


def test_an_empty_plan_gives_a_file_without_tensors(tmp_path: Path) -> None:
    (file,) = lay_out(hand.plan([]), place, 10**9)
    (tmp_path / "model.safetensors").write_bytes(file.head)
    assert hand.loaded(tmp_path) == {}
