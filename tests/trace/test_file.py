from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from blockaudit.errors import RequestError
from blockaudit.records.sites import ordered
from blockaudit.records.trace_file import TraceMetadata
from blockaudit.trace.files.read import TraceFile, listed
from blockaudit.trace.files.write import TraceWriter, write
from blockaudit.trace.tokens import digest

METADATA = TraceMetadata(manifest_sha256="ab" * 32, dtype_policy="bfloat16", mode="end-to-end", depth="full")
MARKED = {"blockaudit.trace": "1"}


def _sites(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    names = ("logits", "layers.1.state", "layers.0.mlp.update", "layers.10.state", "embed", "layers.0.state")
    return {name: torch.randn(2, 3, 8, generator=draw).to(dtype) for name in names}


def _tokens() -> dict[str, Tensor]:
    return {"input_ids": torch.arange(6).reshape(2, 3), "attention_mask": torch.tensor([[1, 1, 1], [0, 1, 1]])}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.safetensors"
    write(path, _sites() | _tokens(), METADATA)
    return path


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_what_is_written_is_read(tmp_path: Path, dtype: torch.dtype) -> None:
    path, sites = tmp_path / "t.safetensors", _sites(dtype)
    write(path, sites | _tokens(), METADATA)
    with TraceFile.open(path) as file:
        assert file.sites == tuple(ordered(sites))
        assert file.sites[0] == "embed"
        assert file.sites[-2:] == ("layers.10.state", "logits")
        assert file.metadata == METADATA
        for name, value in sites.items():
            assert torch.equal(file.tensor(name), value)
            assert (file.shape(name), file.dtype(name)) == ((2, 3, 8), str(dtype).removeprefix("torch."))
        assert digest(file.tokens()) == digest(_tokens())
        valid = file.valid("embed")
        assert valid is not None
        assert valid.tolist() == [[True, True, True], [False, True, True]]
    assert os.listdir(tmp_path) == ["t.safetensors"]


def test_the_safetensors_library_reads_it_and_writes_one(tmp_path: Path, trace: Path) -> None:
    assert all(torch.equal(load_file(trace)[name], value) for name, value in _sites().items())
    with safe_open(trace, "pt") as file:
        assert file.metadata()["blockaudit.trace"] == "1"
    save_file(_sites(), tmp_path / "theirs.safetensors", MARKED)
    with TraceFile.open(tmp_path / "theirs.safetensors") as file:
        assert file.metadata == TraceMetadata()
        assert file.valid("embed") is None
        assert torch.equal(file.tensor("logits"), _sites()["logits"])


def test_a_header_that_outgrows_its_room_is_written_all_the_same(tmp_path: Path) -> None:
    names = [f"layers.{i}.state" for i in range(300)]
    values = {name: torch.full((1, 1, 2), float(i)) for i, name in enumerate(names)}
    path = tmp_path / "t.safetensors"
    with TraceWriter(path, METADATA, expected=1) as writer:
        for name, value in values.items():
            writer.add(name, value)
    assert os.listdir(tmp_path) == ["t.safetensors"]
    assert set(load_file(path)) == set(names)
    with TraceFile.open(path) as file:
        assert list(file.sites) == names
        assert all(torch.equal(file.tensor(n), v) for n, v in values.items())


def test_values_of_any_strides_and_devices_are_written(tmp_path: Path) -> None:
    value = torch.randn(8, 3, 2).permute(2, 1, 0).requires_grad_()
    write(tmp_path / "t.safetensors", {"embed": value}, METADATA)
    with TraceFile.open(tmp_path / "t.safetensors") as file:
        assert torch.equal(file.tensor("embed"), value)


def test_nothing_is_there_until_all_of_it_is(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    path.write_text("before")
    with suppress(KeyboardInterrupt), TraceWriter(path, METADATA) as writer:
        writer.add("embed", torch.ones(1, 1, 2))
        assert path.read_text() == "before"
        raise KeyboardInterrupt
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["t.safetensors"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layer.0.state", torch.ones(1, 1, 2)),
        ("embed", torch.ones(1, 1, 2, dtype=torch.int64)),
        ("input_ids", torch.ones(1, 2)),
        ("logits", torch.ones(1, 1, 2)),
    ],
    ids=["no site", "whole numbers", "no whole numbers", "twice"],
)
def test_what_no_trace_holds_is_refused(tmp_path: Path, name: str, value: Tensor) -> None:
    writer = TraceWriter(tmp_path / "t.safetensors", METADATA)
    writer.add("logits", torch.ones(1, 1, 2))
    with pytest.raises(ValueError, match=name):
        writer.add(name, value)
    writer.discard()
    assert os.listdir(tmp_path) == []


@contextmanager
def _full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 5_000, 50_000, 100_000])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, size: int) -> None:
    path = tmp_path / "t.safetensors"
    states = {f"layers.{i}.state": torch.zeros(1, 8, 100) for i in range(40)}
    with _full_disk(size), pytest.raises(RequestError) as caught:
        write(path, states, METADATA)
    assert str(caught.value) == f"cannot write trace {str(path)!r}: File too large"
    assert os.listdir(tmp_path) == []


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="No such file or directory"):
        TraceWriter(tmp_path / "none" / "t.safetensors", METADATA)
    (tmp_path / "folder").mkdir()
    with pytest.raises(RequestError, match="cannot write trace"):
        write(tmp_path / "folder", _sites(), METADATA)
    assert os.listdir(tmp_path) == ["folder"]


# What is no trace.

STATE = torch.ones(2, 3, 4)


@pytest.mark.parametrize(
    ("tensors", "metadata", "said"),
    [
        ({"embed": STATE}, None, "no trace: its metadata has no 'blockaudit.trace'"),
        ({"embed": STATE}, {"blockaudit.trace": "2"}, "a trace of version '2'; this release reads version 1"),
        ({"embed": STATE}, MARKED | {"blockaudit.mode": "free"}, "its mode 'free' is none of local, layer, end-to-end"),
        ({}, MARKED, "a trace without a single site"),
        ({"input_ids": torch.ones(2, 3).long()}, MARKED, "a trace without a single site"),
        ({"layers.0.input_layernorm": STATE}, MARKED, "'layers.0.input_layernorm' is no trace site"),
        ({"layers.01.state": STATE}, MARKED, "'layers.01.state' is no trace site"),
        ({"embed": STATE.int()}, MARKED, "embed: expected one of F64, F32, F16, BF16, found I32"),
        ({"embed": STATE[0]}, MARKED, "embed: expected shape [B, S, D], found [3, 4]"),
        ({"embed": STATE[:, :0]}, MARKED, "embed: expected shape [B, S, D], found [2, 0, 4]"),
        ({"embed": STATE, "logits": STATE[:1]}, MARKED, "logits: [1, 3] rows, embed has [2, 3]"),
        ({"embed": STATE, "input_ids": torch.ones(2, 2).long()}, MARKED, "[2, 2]"),
        ({"embed": STATE, "input_ids": torch.ones(2, 3)}, MARKED, "input_ids: expected I64 of shape [B, S], found F32"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_each_thing_that_is_wrong_is_one_line(
    tmp_path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None, said: str
) -> None:
    path = tmp_path / "t.safetensors"
    save_file({name: value.clone() for name, value in tensors.items()}, path, metadata)
    with pytest.raises(RequestError) as caught:
        TraceFile.open(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_encoder_and_a_decoder_have_rows_of_their_own(tmp_path: Path) -> None:
    sites = {"encoder.embed": STATE, "decoder.layers.0.state": STATE[:, :1], "logits": STATE[:, :1]}
    tokens = {"attention_mask": torch.ones(2, 3).long(), "decoder_attention_mask": torch.zeros(2, 1).long()}
    write(tmp_path / "t.safetensors", sites | tokens, METADATA)
    with TraceFile.open(tmp_path / "t.safetensors") as file:
        assert file.sites == ("encoder.embed", "decoder.layers.0.state", "logits")
        masks = [file.valid(site) for site in file.sites]
        assert [mask is not None and bool(mask.any()) for mask in masks] == [True, False, False]


def test_no_file_and_other_files_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("a trace\n" * 10)
    for name in ("none", "empty", "text", "."):
        with pytest.raises(RequestError) as caught:
            TraceFile.open(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_any_byte_of_a_header_may_be_wrong(tmp_path: Path) -> None:
    good = tmp_path / "good.safetensors"
    save_file(_sites() | _tokens(), good, MARKED)
    data = good.read_bytes()
    length = int.from_bytes(data[:8], "little") + 8
    draw = random.Random(0)
    path = tmp_path / "t.safetensors"
    said: list[str] = []
    for _ in range(1500):
        place = draw.randrange(length)
        changed = bytearray(data)
        changed[place] = draw.randrange(256)
        path.write_bytes(changed if draw.random() < 0.8 else changed[: draw.randrange(len(changed))])
        try:
            with TraceFile.open(path) as file:
                for site in file.sites:
                    file.numbers(site)
                    file.tensor(site)
        except RequestError as error:
            said.append(str(error))
    assert len(said) > 1000
    assert not any("\n" in line for line in said)


def test_a_file_that_shrinks_while_it_is_open_is_one_line(trace: Path) -> None:
    with TraceFile.open(trace) as file:
        os.truncate(trace, trace.stat().st_size - 600)
        with pytest.raises(RequestError, match="shorter since it was opened"):
            [file.tensor(site) for site in file.sites]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_numbers_are_those_of_torch(tmp_path: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockaudit.trace.files.read._CHUNK", 64)
    value = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(1)).to(dtype)
    value[0, 0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    write(tmp_path / "t.safetensors", {"embed": value}, METADATA)
    metadata, (numbers,) = listed(tmp_path / "t.safetensors")
    finite = value[torch.isfinite(value)].double()
    assert metadata == METADATA
    assert numbers.rms == pytest.approx(float(finite.square().mean().sqrt()), rel=1e-12)
    assert (numbers.non_finite, numbers.shape) == (3, (2, 3, 50))


SHOW = """
import sys
from blockaudit.trace.files.read import listed
print(len(listed(sys.argv[1])[1]), *(m for m in ("torch", "safetensors", "transformers") if m in sys.modules))
"""


def test_showing_does_not_need_torch(trace: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SHOW, str(trace)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["6"]


LARGE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from blockaudit.trace.files.read import TraceFile
file = TraceFile.open(sys.argv[1])
print(file.numbers(file.sites[-1]).non_finite)
"""


def test_a_file_is_never_mapped_nor_read_whole(tmp_path: Path) -> None:
    """A sparse trace of 2 GiB is summed up, one site of it 256 MiB, within an address space of one."""
    site, count = 256 << 20, 8
    header: dict[str, Any] = {"__metadata__": MARKED}
    for i in range(count):
        offsets = [i * site, (i + 1) * site]
        header[f"layers.{i}.state"] = {"dtype": "F32", "shape": [1, 256, 1 << 18], "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = tmp_path / "t.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + count * site)
    done = subprocess.run([sys.executable, "-c", LARGE, str(path)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "0", done.stderr
