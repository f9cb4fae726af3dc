from __future__ import annotations

import gc
import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from blockaudit.checkpoint.header import read_header
from blockaudit.records.checkpoint import Fault, FileHeader, TensorHeader
from tests.checkpoint.build import header, raw_file, safetensors

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def read(path: Path) -> tuple[FileHeader, list[Fault]]:
    return read_header(str(path), path.name)


def one(path: Path) -> tuple[FileHeader, Fault]:
    file, faults = read(path)
    assert len(faults) == 1, faults
    return file, faults[0]


def written(tmp_path: Path, document: Any, data: int = 8) -> Path:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return raw_file(tmp_path / "m.safetensors", text, data)


def test_a_right_header(tmp_path: Path) -> None:
    file, faults = read(safetensors(tmp_path / "m.safetensors", {"a": ("F32", (2, 3)), "b": ("BF16", ())}))
    assert faults == []
    assert file.tensors == {"a": TensorHeader("F32", (2, 3), (0, 24)), "b": TensorHeader("BF16", (), (24, 26))}
    assert file.metadata == {"format": "pt"}
    assert (file.name, file.container, file.readable) == ("m.safetensors", "safetensors", True)
    assert file.data_start + 26 == file.size


@pytest.mark.parametrize(
    "text",
    [
        b'{"__metadata__":{"a":"{\\"x\\": [1]}"},"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   ',
        b'{"t":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"},"__metadata__":{}}',
        b'{ "__metadata__" : {"format" : "pt"} , "t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        b'{"\\u0074":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    ],
)
def test_other_spellings_of_a_right_header(tmp_path: Path, text: bytes) -> None:
    file, faults = read(written(tmp_path, text))
    assert faults == []
    assert list(file.tensors) == ["t"]


def test_order_in_the_text_need_not_be_the_order_of_the_bytes(tmp_path: Path) -> None:
    second = {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}
    assert read(written(tmp_path, {"b": second, "a": F32}, 12))[1] == []


def test_empty_tensors_and_an_empty_header(tmp_path: Path) -> None:
    empty = {"dtype": "F32", "shape": [0, 4], "data_offsets": [8, 8]}
    assert read(written(tmp_path, {"a": F32, "e": empty}))[1] == []
    assert read(written(tmp_path, {}, 0))[1] == []


@pytest.mark.parametrize("content", [b"", b"\x01\x02\x03"])
def test_fewer_than_eight_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    file, fault = one(path)
    assert (fault.rule, fault.expected, fault.observed, file.readable) == ("truncated-file", 8, len(content), False)


def test_the_data_end_early(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors", {"a": ("F32", (2,)), "b": ("F32", (2,))})
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-4])
    file, fault = one(path)
    assert (fault.rule, fault.expected, fault.observed, fault.tensors) == ("truncated-file", whole, whole - 4, ("b",))
    assert f"{whole:,}" in fault.message
    assert f"{whole - 4:,}" in fault.message
    assert file.readable
    assert list(file.tensors) == ["a", "b"]


def test_the_file_ends_inside_its_header(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors", {"a": ("F32", (2,))})
    path.write_bytes(path.read_bytes()[:40])
    file, fault = one(path)
    assert (fault.rule, fault.observed, file.readable) == ("truncated-file", 40, False)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 100_000_001, 10**12])
def test_a_length_beyond_the_format_is_not_believed(tmp_path: Path, length: int) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}")
    file, fault = one(path)
    assert (fault.rule, fault.observed, file.readable) == ("corrupt-header", length, False)


def test_another_container_under_this_name(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    assert "zip" in one(path)[1].message


def test_a_git_lfs_pointer(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 90868376\n")
    file, fault = one(path)
    assert (fault.rule, fault.expected, file.readable) == ("lfs-pointer", 90868376, False)
    assert "90,868,376" in fault.message


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": {**F32, **changes}}


BROKEN: dict[str, Any] = {
    "not json": b'{"a"',
    "no brace": b'[{"a":1}]',
    "a null": b"null",
    "trailing text": b"{} {}",
    "not utf-8": b'{"\xff":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "lone surrogate": b'{"\\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "NaN": b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}',
    "deep": b'{"a":' + b"[" * 100_000,
    "deep in an unknown field": b'{"a":{"x":' + b'{"x":' * 50_000 + b"1" + b"}" * 50_002,
    "long number": b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,8]}}',
    "comma at the end": b'{"__metadata__":{},}',
    "entry is a list": {"a": [1]},
    "no dtype": {"a": {"shape": [2], "data_offsets": [0, 8]}},
    "no shape": {"a": {"dtype": "F32", "data_offsets": [0, 8]}},
    "unknown field": entry(layout="row"),
    "field twice": b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
    "dtype a number": entry(dtype=32),
    "shape a number": entry(shape=2),
    "shape an object": entry(shape={}),
    "shape of bools": entry(shape=[True, 2]),
    "shape of floats": entry(shape=[2.0]),
    "shape of strings": entry(shape=["2"]),
    "three offsets": entry(data_offsets=[0, 4, 8]),
    "one offset": entry(data_offsets=[8]),
    "two thousand dimensions": entry(shape=[1] * 2000),
    "a shape of a thousand digits": entry(shape=[10**1000]),
    "a negative shape of a thousand digits": entry(shape=[-(10**1000)]),
    "offsets of a thousand digits": entry(data_offsets=[-(10**1000), 10**1000]),
    "more values than can be held": b'{"a":[' + b"0," * 2_000_000 + b"0]}",
    "more tensors than can be held": b"{" + b",".join(b'"%d":{}' % i for i in range(1_000_001)) + b"}",
    "metadata of numbers": {"__metadata__": {"a": 1}, "a": F32},
    "metadata a list": {"__metadata__": [], "a": F32},
    "metadata nested": {"__metadata__": {"a": {"b": "c"}}, "a": F32},
    "metadata twice": b'{"__metadata__":{},"__metadata__":{}}',
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_header_that_cannot_be_understood(tmp_path: Path, name: str) -> None:
    file, fault = one(written(tmp_path, BROKEN[name]))
    assert fault.rule == "corrupt-header"
    assert not file.readable
    assert file.tensors == {}
    assert len(fault.message) < 300
    assert gc.isenabled()


WRONG: dict[str, tuple[dict[str, Any], tuple[Any, Any]]] = {
    "shape and range disagree": (entry(shape=[3]), (12, 8)),
    "unknown dtype": (entry(dtype="F128"), (None, None)),
    "dtype in lower case": (entry(dtype="f32"), (None, None)),
    "negative shape": (entry(shape=[-2, -1]), (None, None)),
    "shape of 2**64": (entry(shape=[2**64]), (None, None)),
    "product beyond memory": (entry(shape=[2**40, 2**40]), (None, None)),
    "half a byte": (entry(dtype="F4", shape=[3], data_offsets=[0, 1]), (None, None)),
    "range runs backwards": (entry(data_offsets=[8, 0]), (None, None)),
    "negative offset": (entry(data_offsets=[-8, 0]), (None, None)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_tensor_that_contradicts_itself(tmp_path: Path, name: str) -> None:
    document, (need, have) = WRONG[name]
    file, faults = read(written(tmp_path, document))
    assert faults[0].rule == "corrupt-header"
    assert faults[0].tensors == ("a",)
    assert (faults[0].expected, faults[0].observed) == (need, have)
    assert file.readable
    assert list(file.tensors) == ["a"]


def test_tensors_that_overlap(tmp_path: Path) -> None:
    other = {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}
    _, fault = one(written(tmp_path, {"a": F32, "b": other}, 12))
    assert (fault.rule, fault.tensors) == ("overlapping-tensors", ("a", "b"))


def test_two_names_for_one_range_overlap(tmp_path: Path) -> None:
    assert one(written(tmp_path, {"a": F32, "b": F32}))[1].rule == "overlapping-tensors"


def test_a_hole(tmp_path: Path) -> None:
    _, fault = one(written(tmp_path, {"a": F32, "b": {**F32, "data_offsets": [12, 20]}}, 20))
    assert (fault.rule, fault.observed) == ("header-gap", 4)
    assert "8-12" in fault.message


def test_trailing_bytes(tmp_path: Path) -> None:
    _, fault = one(written(tmp_path, {"a": F32}, 108))
    assert (fault.rule, fault.observed) == ("header-gap", 100)


def test_a_key_twice(tmp_path: Path) -> None:
    text = (
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}'
    )
    file, fault = one(written(tmp_path, text, 12))
    assert (fault.rule, fault.tensors) == ("duplicate-key", ("a",))
    assert file.tensors["a"].shape == (1,)


def test_names_are_kept_as_they_are(tmp_path: Path) -> None:
    names = ["a\x1b[31mred", 'quo"te', "new\nline", "", "ключ"]
    made, end = header(dict.fromkeys(names, ("F32", (1,))))
    file, faults = read(written(tmp_path, made, end))
    assert faults == []
    assert list(file.tensors) == names


def test_no_such_file_and_no_regular_file(tmp_path: Path) -> None:
    assert one(tmp_path / "none")[1].rule == "unreadable-file"
    assert one(tmp_path)[1].rule == "unreadable-file"


def test_a_name_of_a_megabyte_is_cut_in_messages_and_whole_in_the_record(tmp_path: Path) -> None:
    name = "n" * (1 << 20)
    file, fault = one(written(tmp_path, {name: {**F32, "shape": [3]}}))
    assert list(file.tensors) == [name]
    assert fault.tensors == (name,)
    assert len(fault.message) < 500
    assert len(one(written(tmp_path, {name: 1}))[1].message) < 500


def test_metadata_of_megabytes_costs_no_gigabytes(tmp_path: Path) -> None:
    metadata = {f"{i:06d}": '\\\\"' for i in range(100_000)}
    path = written(tmp_path, {"__metadata__": metadata, "a": F32})
    tracemalloc.start()
    file, faults = read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (faults, file.metadata) == ([], metadata)
    # A text of 3 MB: the header itself, its copy, and the pairs made of it.
    assert peak < 64 << 20


def test_a_header_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 1 << 30) + b"{")
        file.truncate((1 << 30) + 8)  # a hole: it takes no room on the disk
    tracemalloc.start()
    _, fault = one(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (fault.rule, fault.expected, fault.observed) == ("corrupt-header", 100_000_000, 1 << 30)
    assert "1,073,741,824 bytes, more than the format's limit of 100,000,000" in fault.message
    assert peak < 1 << 20
