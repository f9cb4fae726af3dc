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
SHAPE = Shape(layers=5, d_model=64, d_ff=96, heads=4, vocab=160)
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


def conform(folder: Path, **asked: Any) -> Any:
    return pipeline.conform(str(folder), batch=2, seq_len=8, device="cpu", **asked)


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


@pytest.mark.usefixtures("small")
def test_embedding_and_head_are_never_held(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, fetched = Weights._fetched, list[str]()

    def watched(self: Weights, key: str) -> Any:
        fetched.append(key)
        return own(self, key)

    monkeypatch.setattr(Weights, "_fetched", watched)
    report = conform(folder)
    assert report.verdict == "accepted"
    assert {EMBED, HEAD}.isdisjoint(fetched)
    assert DOWN in fetched


@pytest.mark.parametrize("mode", ["local", "layer", "end-to-end", "all"])
def test_two_layers_are_held_at_most(folder: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own, most = Weights._stored, 0

    def watched(self: Weights, key: str) -> torch.Tensor:
        nonlocal most
        value = own(self, key)
        ahead = [k for k in self._ahead if "layers" in k]
        sizes = [self.checkpoint.tensors[k].nbytes for k in {*ahead, *(k for k in self._held if "layers" in k)}]
        most = max(most, sum(sizes))
        return value

    monkeypatch.setattr(Weights, "_stored", watched)
    assert conform(folder, mode=mode).verdict == "accepted"
    assert SHAPE.layer_bytes < most <= 2 * SHAPE.layer_bytes


def test_a_layer_is_read_once_a_batch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, fetched = Weights._fetched, list[str]()

    def watched(self: Weights, key: str) -> Any:
        fetched.append(key)
        return own(self, key)

    monkeypatch.setattr(Weights, "_fetched", watched)
    conform(folder)
    # float32 and bfloat16, the batch and the padded rows.
    assert fetched.count(DOWN) == 4


def test_operators_are_recorded_once_a_shape(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, shapes = models.live.record_model, list[tuple[int, ...]]()

    def watched(model: Any, inputs: models.Inputs, version: str = "") -> Any:
        shapes.append(tuple(inputs["input_ids"].shape))
        return own(model, inputs, version)

    monkeypatch.setattr(models.live, "record_model", watched)
    conform(folder)
    assert sorted(shapes) == [(2, 7), (2, 7), (2, 8), (2, 8)]


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
