from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from blockaudit.checkpoint.distributed.chunks import Budget, flaw  # noqa: E402
from blockaudit.checkpoint.distributed.metadata import Chunk, Tensor  # noqa: E402
from blockaudit.checkpoint.source import open_checkpoint  # noqa: E402
from blockaudit.checkpoint.values import read_vector  # noqa: E402
from tests.support.audit import inspect  # noqa: E402
from tests.support.distributed import FILE, LLAMA, change, cut, save, weights  # noqa: E402

NORM = "model.layers.1.input_layernorm.weight"
UP = "model.layers.1.mlp.up_proj.weight"  # 256 x 96


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return save(tmp_path / "ckpt", weights())


# -- what is read -----------------------------------------------------------------------------------------------------


def test_a_plain_state_dict(plain: Path) -> None:
    outcome = inspect(plain)
    assert (outcome.status, outcome.names) == (0, []), outcome.out
    assert outcome.report is not None
    assert outcome.report["subject"]["format"] == "torch-distributed"
    assert outcome.report["subject"]["tensors"] == len(weights())
    assert inspect(plain / ".metadata").status == 0


@pytest.mark.parametrize("where", ["model", "app.model"])
def test_the_model_in_a_training_state(where: str, tmp_path: Path) -> None:
    state: dict[str, Any] = {
        "model": weights(),
        "optimizer": {"state": {"x": {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 0.1}]},
    }
    outcome = inspect(save(tmp_path / "ckpt", {"app": state} if where.startswith("app") else state))
    assert (outcome.status, outcome.names) == (0, ["part-not-covered"]), outcome.out


def test_norm_vectors_are_read_where_they_lie(plain: Path) -> None:
    checkpoint = open_checkpoint(str(plain))
    stats = read_vector(checkpoint, NORM)
    assert stats is not None
    assert stats.mean == pytest.approx(weights()[NORM].float().mean().item(), rel=1e-6)


def test_no_more_than_headers(plain: Path) -> None:
    outcome = inspect(plain, "--level", "values")
    assert outcome.status == 2
    assert "dcp_to_torch" in outcome.err


def test_nothing_but_training_state(tmp_path: Path) -> None:
    outcome = inspect(save(tmp_path / "ckpt", {"optimizer": {"x": torch.zeros(3)}}))
    assert (outcome.status, outcome.grave) == (1, ["sharded-training-state"])


# -- what is wrong with the model -------------------------------------------------------------------------------------


def faulty(tmp_path: Path, spoil: Callable[[dict[str, Any]], Any]) -> list[str]:
    state = weights()
    spoil(state)
    outcome = inspect(save(tmp_path / "ckpt", state))
    assert outcome.status == 1
    return outcome.grave


def test_a_lost_norm(tmp_path: Path) -> None:
    assert faulty(tmp_path, lambda state: state.pop(NORM)) == ["norm-missing"]


def test_a_wrong_shape(tmp_path: Path) -> None:
    assert faulty(tmp_path, lambda state: state.update({UP: state[UP][:-1].clone()})) == ["shape-mismatch"]


def test_an_epsilon_that_is_not_the_pinned_one(plain: Path, tmp_path: Path) -> None:
    manifest = LLAMA.parents[1] / "manifests" / "llama.json"
    held = tmp_path / "held.json"
    held.write_text(
        manifest.read_text().replace('"config": "rms_norm_eps"', '"pinned": 1e-05, "config": "rms_norm_eps"')
    )
    assert inspect(plain, "--manifest", str(held)).grave == ["epsilon-mismatch"]


# -- what is wrong with the files -------------------------------------------------------------------------------------


def test_a_truncated_file(plain: Path) -> None:
    path = plain / FILE
    path.write_bytes(path.read_bytes()[:-2000])
    outcome = inspect(plain)
    assert (outcome.status, outcome.grave) == (1, ["truncated-file"])
    assert outcome.findings[0]["subject"] == FILE


def test_a_file_that_ends_in_what_is_not_covered(tmp_path: Path) -> None:
    folder = save(tmp_path / "ckpt", {"model": weights(), "optimizer": {"x": torch.zeros(300_000)}})
    path = folder / FILE
    path.write_bytes(path.read_bytes()[:-500_000])
    assert inspect(folder).grave == ["truncated-file"]


def test_a_file_that_is_not_there(plain: Path) -> None:
    (plain / FILE).unlink()
    outcome = inspect(plain)
    assert (outcome.status, outcome.grave) == (1, ["shard-missing"])
    assert outcome.findings[0]["subject"] == FILE


@pytest.mark.parametrize(
    ("boxes", "says"),
    [
        ([([0, 0], [200, 96]), ([201, 0], [55, 96])], "96 are nowhere"),
        ([([0, 0], [200, 96]), ([199, 0], [57, 96])], "share elements"),
        ([([0, 0], [128, 96]), ([0, 0], [128, 96])], "share elements"),
        ([([0, 0], [256, 96]), ([256, 0], [1, 96])], "no room"),
        ([([0], [256])], "no room"),
        ([], "are nowhere"),
    ],
)
def test_chunks_that_are_not_the_tensor(boxes: Any, says: str, plain: Path) -> None:
    outcome = inspect(change(plain, cut(UP, *boxes)))
    assert outcome.status == 1
    assert set(outcome.grave) == {"corrupt-header"}, outcome.out
    assert any(says in f["message"] and f["tensors"] == [UP] for f in outcome.findings), outcome.out


def test_chunks_in_a_grid_are_the_tensor(plain: Path) -> None:
    halves = [([r, c], [128, 48]) for r in (0, 128) for c in (0, 48)]
    assert inspect(change(plain, cut(UP, *halves))).status == 0


def test_a_hole_that_an_overlap_makes_up_for() -> None:
    chunks = tuple(Chunk((start,), (4,), None) for start in (0, 2, 8))
    assert "share" in flaw(Tensor("F32", (12,), chunks), Budget())


def test_more_chunks_than_can_be_compared() -> None:
    chunks = tuple(Chunk((0, i), (9, 1), None) for i in range(100))
    assert flaw(Tensor("F32", (9, 100), chunks), Budget()) == ""
    assert "more than can be held" in flaw(Tensor("F32", (9, 100), chunks), Budget(50))


@pytest.mark.parametrize("name", ["../outside.distcp", "/etc/hostname", "a\0b", "C:\\x", "a/../../b"])
def test_no_file_outside_the_folder_is_opened(name: str, plain: Path) -> None:
    def astray(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.relative_path = name

    outcome = inspect(change(plain, astray))
    assert outcome.status == 1
    assert set(outcome.grave) == {"corrupt-header"}, outcome.out
    assert "not opened" in outcome.findings[0]["message"]


def test_a_place_that_is_too_small(plain: Path) -> None:
    def small(metadata: Any) -> None:
        for index, info in metadata.storage_data.items():
            info.length = 10 if index.fqn == UP else info.length

    outcome = inspect(change(plain, small))
    assert (outcome.status, outcome.grave) == (1, ["corrupt-header"])


def test_a_vector_whose_bytes_are_another_tensor(plain: Path) -> None:
    def swapped(metadata: Any) -> None:
        places = {index.fqn: info for index, info in metadata.storage_data.items()}
        one, other = places[NORM], places[UP]
        one.offset, one.length = other.offset, other.length

    outcome = inspect(change(plain, swapped))
    assert (outcome.status, outcome.grave) == (1, ["corrupt-header"])
    assert "is stored where the metadata has BF16 [96]" in outcome.findings[0]["message"]


def test_a_pickle_that_asks_for_more(plain: Path) -> None:
    (plain / ".metadata").write_bytes(pickle.dumps(pytest.raises))
    outcome = inspect(plain)
    assert outcome.status == 1
    assert "unsafe-pickle" in outcome.grave


# -- Megatron-core ----------------------------------------------------------------------------------------------------


def megatron(folder: Path, backend: str = "torch_dist") -> Path:
    """The layout of Megatron-core 0.16 (dist_checkpointing/core.py): layers stacked, projections fused."""
    layers = {"self_attention.linear_qkv.weight": (2, 16, 8), "mlp.linear_fc1.layer_norm_weight": (2, 8)}
    state: dict[str, Any] = {f"decoder.layers.{key}": torch.zeros(shape) for key, shape in layers.items()}
    state["decoder.final_layernorm.weight"] = torch.ones(8)
    state["optimizer.state.exp_avg.decoder.final_layernorm.weight"] = torch.ones(8)
    save(folder, state, config=False)
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": backend, "sharded_backend_version": 1}))
    torch.save({"args": 1}, folder / "common.pt")
    return folder


def test_a_megatron_core_checkpoint_says_that_it_wants_a_map(tmp_path: Path) -> None:
    outcome = inspect(megatron(tmp_path / "ckpt"))
    assert (outcome.status, outcome.grave) == (3, ["config-missing", "unknown-architecture"])
    assert outcome.report is not None
    assert (outcome.report["subject"]["format"], outcome.report["subject"]["tensors"]) == ("megatron-core", 5)
    assert "migration map" in outcome.findings[1]["help"]


def test_other_backends_of_megatron_core_are_refused_by_name(tmp_path: Path) -> None:
    outcome = inspect(megatron(tmp_path / "ckpt", "zarr"))
    assert outcome.status == 2
    assert "zarr" in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_a_megatron_core_checkpoint_without_its_metadata(tmp_path: Path) -> None:
    folder = megatron(tmp_path / "ckpt")
    (folder / ".metadata").unlink()
    outcome = inspect(folder)
    assert outcome.status == 1
    assert outcome.findings[0]["subject"] == ".metadata"
