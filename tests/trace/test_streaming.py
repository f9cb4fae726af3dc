"""Weights by positioned reads: what is held while a layer runs, and matrices that are never held at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file

from benchmarks.conform_large import Shape, write
from blockaudit import pipeline
from blockaudit.checkpoint.source import open_checkpoint
from blockaudit.checkpoint.values import close_files
from blockaudit.errors import RequestError
from blockaudit.trace import models, weights
from blockaudit.trace.weights import Weights

CPU = torch.device("cpu")
SHAPE = Shape(layers=3, d_model=64, d_ff=96, heads=4, vocab=160)
EMBED, HEAD, DOWN = "model.embed_tokens.weight", "lm_head.weight", "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("streaming") / "model", SHAPE)


@pytest.fixture
def held(folder: Path) -> Iterator[Weights]:
    of = Weights(open_checkpoint(str(folder)), CPU)
    yield of
    of.close()
    close_files()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of this test are large: embedding and head are read in parts, others widened in parts."""
    monkeypatch.setattr(weights, "LARGE", 160 * 64 - 1)
    monkeypatch.setattr(weights, "PART", 4096)


def test_tensors_are_what_the_file_holds(folder: Path, held: Weights) -> None:
    for key, value in load_file(folder / "model.safetensors").items():
        assert torch.equal(held.tensor(key), value)
        assert torch.equal(held.tensor(key, torch.bfloat16, torch.float64), value.double())


def test_a_cast_that_rounds_is_not_left_out(folder: Path, held: Weights) -> None:
    value = load_file(folder / "model.safetensors")[DOWN]
    assert torch.equal(held.tensor(DOWN, torch.float16, torch.float32), value.half().float())


@pytest.mark.parametrize("key", [EMBED, DOWN])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.usefixtures("small")
def test_parts_are_parts_of_the_whole(folder: Path, held: Weights, key: str, dtype: torch.dtype) -> None:
    value = load_file(folder / "model.safetensors")[key].to(dtype)
    with torch.no_grad():
        assert torch.equal(torch.cat([block.clone() for block in held.blocks(key, dtype)]), value)
    blocks = list(held.blocks(key, dtype))
    assert torch.equal(torch.cat(blocks), value)
    assert len(blocks) > 1 or (key == DOWN and dtype == torch.bfloat16)
    ids = torch.tensor([[3, 0, 3], [len(value) - 1, 1, 2]])
    assert torch.equal(held.rows(key, ids, dtype), value[ids])


@pytest.mark.usefixtures("small")
def test_a_row_that_is_not_there_is_an_error(held: Weights) -> None:
    with pytest.raises(IndexError, match="row 160 of 160"):
        held.rows(EMBED, torch.tensor([160]))


def test_a_file_that_ends_early_is_told(tmp_path: Path) -> None:
    folder = write(tmp_path, Shape(layers=1, d_model=64, d_ff=96, heads=4, vocab=160))
    of = Weights(open_checkpoint(str(folder)), CPU)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(10_000)
    with pytest.raises(RequestError, match="could be read"):
        of.tensor(HEAD)
    of.close()
    close_files()


def test_what_a_run_reads_holds_and_records(folder: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every mode, in float32 and in bfloat16, on the batch and on padded rows."""
    fetch, stored, record = Weights._fetched, Weights._stored, models.live.record_model
    fetched, shapes, held = list[str](), list[tuple[int, ...]](), list[int]()

    def fetching(self: Weights, key: str) -> Any:
        fetched.append(key)
        return fetch(self, key)

    def storing(self: Weights, key: str) -> torch.Tensor:
        value = stored(self, key)
        layers = {k for k in (*self._ahead, *self._held) if "layers" in k}
        held.append(sum(self.checkpoint.tensors[k].nbytes for k in layers))
        return value

    def recording(model: Any, inputs: models.Inputs, version: str = "") -> Any:
        shapes.append(tuple(inputs["input_ids"].shape))
        return record(model, inputs, version)

    monkeypatch.setattr(Weights, "_fetched", fetching)
    monkeypatch.setattr(Weights, "_stored", storing)
    monkeypatch.setattr(models.live, "record_model", recording)
    assert pipeline.conform(str(folder), batch=2, seq_len=8, device="cpu").verdict == "accepted"
    assert {EMBED, HEAD}.isdisjoint(fetched), "a large table was read whole"
    assert fetched.count(DOWN) == 4, "once a dtype and batch"
    assert SHAPE.layer_bytes < max(held) <= 2 * SHAPE.layer_bytes
    assert sorted(shapes) == [(2, 7), (2, 7), (2, 8), (2, 8)], "once a dtype and shape"


@pytest.mark.gpu
def test_on_a_device_the_copy_is_there_before_it_is_used(folder: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    of = Weights(open_checkpoint(str(folder)), torch.device("cuda"))
    for key, value in load_file(folder / "model.safetensors").items():
        of.prefetch([key])
        assert torch.equal(of.tensor(key, torch.float32).cpu(), value.float())
        of.release()
    of.close()
    close_files()
    assert pipeline.conform(str(folder), batch=2, seq_len=8, device="cuda").verdict == "accepted"
